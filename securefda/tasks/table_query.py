"""The rows of a query: one SELECT, in a transaction that can only read, of a database that a SQLAlchemy URL names.

The URL may hold a password. It is read where it is used, and no error, log or representation holds it.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import quote

from pydantic import AfterValidator, model_validator

from securefda.disk import check_secret_mode, read_file
from securefda.errors import ConfigError, DataError
from securefda.settings import OptionalSettingsPath, Settings
from securefda.tasks.table_files import Table, table_of_values

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_DRIVERS = "PostgreSQL psycopg, MySQL pymysql, SQLite none"


def _one_select(statement: str) -> str:
    bare = _QUOTED.sub(" ", statement).strip().removesuffix(";").lower()
    if not re.match(r"(select|with)\b", bare) or ";" in bare:
        raise ValueError("must be one SELECT")
    if not re.search(r"\border\s+by\b", bare):
        raise ValueError("must have ORDER BY: else the order of the rows could differ from run to run")
    return statement.strip().removesuffix(";")


class Query(Settings):
    """The query whose rows are a site's."""

    statement: Annotated[str, AfterValidator(_one_select)]
    """One SELECT with ORDER BY."""

    url_variable: str = ""
    """The environment variable that holds the database's URL, as SQLAlchemy writes it."""

    url_file: OptionalSettingsPath = None
    """Or the file that holds it, which only its owner can read (mode 0600)."""

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if bool(self.url_variable) == bool(self.url_file):
            raise ValueError("needs url-variable or url-file, and not both")
        return self

    def rows(self, path: Path, key: str) -> Table:
        """Return the rows; ``path`` is the file with the query, and ``key`` names it in errors.

        Raises:
            ConfigError: SQLAlchemy or the database's driver is not installed, or there is no URL.
            DataError: the database refuses, or the rows are not a table.
        """
        try:
            import sqlalchemy  # noqa: PLC0415 - an extra
            import sqlalchemy.exc  # noqa: PLC0415
        except ImportError as error:
            why, hint = "queries need sqlalchemy", "pip install 'securefda[sql]'"
            raise ConfigError(f"{key}: sql", why, hint=hint) from error
        text, where = self._url(key), f"{key}: sql"
        try:
            url = sqlalchemy.make_url(text)
            if url.get_backend_name() == "sqlite":  # its driver would make a file that is missing
                database = f"file:{quote(url.database or '')}"
                url = url.set(database=database, query={**url.query, "mode": "ro", "uri": "true"})
            engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
            with engine.connect().execution_options(no_parameters=True) as connection:
                if url.get_backend_name() != "sqlite":
                    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                result = connection.exec_driver_sql(self.statement)
                rows = enumerate([tuple(result.keys()), *map(tuple, result)])
        except ImportError as error:
            hint = f"install the driver that its URL names: {_DRIVERS}"
            raise ConfigError(where, f"the database's driver {error.name} is not installed", hint=hint) from None
        except sqlalchemy.exc.ArgumentError:
            hint = "for example postgresql+psycopg://user:password@host/database"
            raise ConfigError(where, "its URL is none that SQLAlchemy reads", hint=hint) from None
        except Exception as error:  # noqa: BLE001 - whatever a driver raises; its words may hold the URL, or a cell
            hint = "try URL and query with the database's own client; the transaction can only read"
            raise DataError(where, f"the database refused: {type(error).__name__}", hint=hint) from None
        return replace(table_of_values(path, rows, where), source=f"a query of {url.get_backend_name()}")

    def _url(self, key: str) -> str:
        if self.url_file is None:
            url = os.environ.get(self.url_variable, "")
            if not url:
                why, hint = f"the variable {self.url_variable} is not set", "set it to the database's URL"
                raise ConfigError(f"{key}: sql.url-variable", why, hint=hint)
            return url
        content = read_file(self.url_file, hint="write the database's URL into it")
        check_secret_mode(str(self.url_file), content)
        return content.data.decode("utf-8", "replace").strip()
