"""``federation init --deploy compose|kubernetes``: what is written, held against the images and real processes."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from e2e_processes import Process, children_of, kits
from fork_server import REPOSITORY
from free_ports import free_port

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.settings import read_toml

SITES = ("clinic", "hospital-a", "hospital-b", "hospital-c")
INIT = ("federation", "init", "three_hospitals")
ELSEWHERE = "192.0.2.7"
ROLES = {"clinic": "aggregator", "hospital-a": "source"}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


Start = Callable[[list[str]], Process]


def deploy(out: Path, kind: str, *more: str) -> dict[str, Path]:
    """Each site's folder."""
    assert main([*INIT, "--out", str(out), "--deploy", kind, *more]) == 0
    return {site: out / f"{site}.deploy" for site in SITES}


def entry_point(role: str) -> list[str]:
    """How an image begins."""
    text = (REPOSITORY / "services" / role / "Containerfile").read_text()
    return json.loads(re.findall(r"(?m)^ENTRYPOINT (.*)$", text)[0])


def in_kit(arguments: list[str], kit: Path, port: int) -> list[str]:
    """The arguments of a container outside of one: with another kit, and a port for probes that is free."""
    assert arguments[0] == "securefda"
    return [part.replace("/kit", str(kit)).replace("=9464", f"={port}") for part in arguments[1:]]


def is_well(probe: list[str], port: int) -> bool:
    """Run a probe as a container engine does."""
    assert probe[0] == "python"
    command = [sys.executable, *(part.replace(":9464/", f":{port}/") for part in probe[1:])]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def service_of(folder: Path) -> dict[str, Any]:
    (service,) = yaml.safe_load((folder / "compose.yaml").read_text())["services"].values()
    return service


def test_images_differ_in_their_role_alone() -> None:
    aggregator, source = ((REPOSITORY / "services" / role / "Containerfile").read_text() for role in ROLES.values())
    assert aggregator.split("\n\n", 1)[0] != source.split("\n\n", 1)[0]
    same = aggregator.split("\n\n", 1)[1].replace("EXPOSE 8443\n", "").replace('"aggregator"', '"source"')
    assert same == source.split("\n\n", 1)[1]


def test_a_composed_container_starts_its_process_and_asks_whether_it_is_ready(tmp_path: Path, start: Start) -> None:
    port = free_port()
    found = deploy(tmp_path / "kits", "compose", "--address", f"{ELSEWHERE}:{port}")
    for site, line, ready in (("hospital-a", "trains on", False), ("clinic", "listens on", True)):
        service, probes = service_of(found[site]), free_port()
        assert (found[site] / service["volumes"][0].partition(":")[0]).resolve() == tmp_path / "kits" / site
        started = in_kit([*entry_point(ROLES[site]), *service["command"]], tmp_path / "kits" / site, probes)
        process = start(started).until(line)
        assert children_of(process.process.pid) == []  # who kills the container kills this process, and no other
        engine, *probe = service["healthcheck"]["test"]
        assert engine == "CMD"
        assert is_well(probe, probes) is ready
        assert is_well([part.replace("/readyz", "/healthz") for part in probe], probes)
        process.kill()
        assert not is_well([part.replace("/readyz", "/healthz") for part in probe], probes)


def test_a_composed_aggregator_listens_on_every_address_and_a_source_publishes_no_port(tmp_path: Path) -> None:
    found = deploy(tmp_path / "kits", "compose", "--address", f"{ELSEWHERE}:9000", "--listen", "0.0.0.0:8443")
    assert [service_of(found[site]).get("ports") for site in SITES] == [["9000:8443"], None, None, None]
    found = deploy(tmp_path / "others", "compose", "--address", f"{ELSEWHERE}:9000")
    settings = read_toml(tmp_path / "others/clinic/local/settings.toml")
    assert settings["transport"]["listen"] == "0.0.0.0:9000"


def test_a_composed_container_may_do_nothing_but_its_work(tmp_path: Path) -> None:
    for folder in deploy(tmp_path / "kits", "compose", "--address", f"{ELSEWHERE}:8443").values():
        service = service_of(folder)
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_the_walkthrough_s_compose_file_is_what_is_written_for_its_sites(tmp_path: Path) -> None:
    found = deploy(tmp_path / "kits", "compose", "--address", "clinic:8443")
    walk = yaml.safe_load((REPOSITORY / "services/compose.yaml").read_text())["services"]
    written = {site: service_of(folder) for site, folder in found.items()}
    for site, service in walk.items():
        assert service.pop("build") == {
            "context": "..",
            "dockerfile": f"services/{'aggregator' if site == 'clinic' else 'source'}/Containerfile",
        }
        service["volumes"] = [volume.replace("../kits/", "../") for volume in service["volumes"]]
    written["clinic"].pop("ports")  # its network is the file's own
    assert walk == written


AT = "@sha256:" + "0a" * 32
PINNED = {role: f"registry.example.org:5000/securefda-{role}{AT}" for role in ROLES.values()}


def test_images_are_pinned_by_digest_or_a_line_says_that_they_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ("--address", f"{ELSEWHERE}:{8443}")
    images = [part for role, name in PINNED.items() for part in ("--image", f"{role}={name}")]
    for kind, given, last in (
        ("compose", images, "hand it to the site"),
        ("compose", images[:2], "an image named by a tag can change"),
        ("kubernetes", images, "hand it to the site"),
        ("kubernetes", [], "an image named by a tag can change"),
    ):
        out = tmp_path / f"{kind}-{len(given)}"
        found = deploy(out, kind, *address, *given)
        assert last in capsys.readouterr().out.splitlines()[-1]
        for site, role in ROLES.items():
            expected = PINNED[role] if f"{role}={PINNED[role]}" in given else f"securefda-{role}"
            if kind == "compose":
                assert service_of(found[site])["image"] == expected
            else:
                (image,) = yaml.safe_load((found[site] / "kustomization.yaml").read_text())["images"]
                name, _, digest = expected.partition("@")
                assert image == {"name": "securefda", "newName": name} | (
                    {"digest": digest} if digest else {"newTag": "latest"}
                )


@needs_kubectl
def test_every_container_of_a_pod_runs_the_pinned_image(tmp_path: Path) -> None:
    out = tmp_path / "kits"
    images = [part for role, name in PINNED.items() for part in ("--image", f"{role}={name}")]
    found = deploy(out, "kubernetes", "--address", f"{ELSEWHERE}:{PORT}", *images)
    for site, role in ROLES.items():
        pod = Manifests(found[site], out / site).pod
        assert {one["image"] for one in (*pod["containers"], *pod["initContainers"])} == {PINNED[role]}


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        *(
            (
                ("compose", "--address", "clinic:8443", "--image", image),
                f"--image {image}: is not ROLE=NAME@sha256:DIGEST",
                "name the role, aggregator or source, and a digest: a tag can come to mean another image",
            )
            for image in ("source=securefda-source:1.0.0", f"clinic=securefda{AT}", f"source=securefda{AT[:-1]}")
        ),
        (
            ("systemd", "--image", f"source=securefda-source{AT}"),
            "--image: is of containers",
            "give --deploy compose or kubernetes, or leave --image out",
        ),
        (
            ("compose",),
            "--address: 127.0.0.1:8443 is each container's own",
            "name an address that leads to the aggregator",
        ),
        (
            ("kubernetes", "--address", "localhost:8443"),
            "--address: localhost:8443 is each container's own",
            "name an address that leads to the aggregator",
        ),
        (
            ("compose", "--address", "clinic:8443", "--listen", "127.0.0.1:8443"),
            "--listen: 127.0.0.1:8443 is each container's own",
            "use 0.0.0.0:PORT",
        ),
        (
            ("kubernetes", "--address", "clinic.example.org:8443"),
            "--address: a NetworkPolicy knows no host names, as clinic.example.org",
            "give its IP address, and the name in its certificate with --server-name",
        ),
        (
            ("kubernetes", "--address", "192.0.2.7:8443", "--set", f"federation.target={'c' * 42}"),
            f"site {'c' * 42}: is no name for a StatefulSet",
            "use at most 41 characters, the last a letter or a digit",
        ),
    ],
)
def test_a_bad_value_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], error: str, hint: str
) -> None:
    out = tmp_path / "kits"
    assert main([*INIT, "--out", str(out), "--deploy", *arguments]) == ExitCode.CONFIG
    assert capsys.readouterr().err.splitlines() == [f"error: {error}", f"hint: {hint}"]
    assert not out.exists()


class Manifests:
    """What kubectl makes of a site's folder."""

    def __init__(self, folder: Path, kit: Path) -> None:
        assert main(["kit", "package", str(kit), "--out", str(folder / "kit.tar")]) == 0
        rendered = subprocess.run(["kubectl", "kustomize", folder], check=True, capture_output=True, text=True)
        self.every = list(yaml.safe_load_all(rendered.stdout))

    def one(self, kind: str, name: str = "") -> dict[str, Any]:
        """The one object of a kind, or of a kind and a name."""
        (found,) = [one for one in self.every if one["kind"] == kind and name in ("", one["metadata"]["name"])]
        return found

    @property
    def pod(self) -> dict[str, Any]:
        return self.one("StatefulSet")["spec"]["template"]["spec"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return container


PORT = 8443


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifests]:
    out = tmp_path_factory.mktemp("kubernetes") / "kits"
    found = deploy(out, "kubernetes", "--address", f"{ELSEWHERE}:{PORT}")
    return {site: Manifests(found[site], out / site) for site in ROLES}


@needs_kubectl
@pytest.mark.parametrize("site", ROLES)
def test_manifests_are_what_kubernetes_takes(manifests: dict[str, Manifests], site: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    kinds = {"Namespace", "NetworkPolicy", "PodDisruptionBudget", "Secret", "StatefulSet"}
    assert {one["kind"] for one in manifests[site].every} == kinds | ({"Service"} if site == "clinic" else set())
    for one in manifests[site].every:
        validator.validate(one, validator.latest_version(), strict=True)
        with pytest.raises(validator.ValidationError):
            validator.validate({**one, "sepc": {}}, validator.latest_version(), strict=True)


@needs_kubectl
@pytest.mark.parametrize("site", ROLES)
def test_pods_keep_to_the_restricted_standard(manifests: dict[str, Manifests], site: str) -> None:
    """Field by field, as the standard for pod security lists them."""
    found, pod = manifests[site], manifests[site].pod
    assert found.one("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {one["metadata"].get("namespace", f"securefda-{site}") for one in found.every} == {f"securefda-{site}"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} == {"secret", "emptyDir"}
    for container in (*pod["containers"], *pod["initContainers"]):
        confined = container["securityContext"]
        assert confined == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert "hostPort" not in json.dumps(container)
        assert {"limits", "requests"} <= set(container["resources"])
    assert pod["automountServiceAccountToken"] is False


@needs_kubectl
def test_the_init_container_puts_the_kit_where_the_process_finds_it(tmp_path: Path, start: Start) -> None:
    """Twice, as after a restart: settings and policy follow the package, and what the process wrote stays."""
    out, port = tmp_path / "kits", free_port()
    folder = deploy(out, "kubernetes", "--address", f"{ELSEWHERE}:{port}")["clinic"]
    found = Manifests(folder, out / "clinic")
    (init,) = found.pod["initContainers"]
    *python, script = init["command"]
    assert python == ["python", "-I", "-c"]
    for path, here in (("/run/kit", folder), ("/keys", tmp_path / "keys"), ("/kit/local", tmp_path / "kit/local")):
        assert path in [mount["mountPath"] for mount in init["volumeMounts"]]
        script = script.replace(f'"{path}', f'"{here}')
    for volume in ("keys", "kit/local"):
        (tmp_path / volume).mkdir(parents=True)
    for text in ("first", "second"):
        settings = out / "clinic/local/settings.toml"
        settings.write_text(f"{settings.read_text()}# {text}\n")
        (folder / "kit.tar").unlink()
        assert main(["kit", "package", str(out / "clinic"), "--out", str(folder / "kit.tar")]) == 0
        subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY)
        assert (tmp_path / "kit/local/settings.toml").read_text().endswith(f"# {text}\n")
        (tmp_path / "kit/local/written").touch(exist_ok=True)
    (keys,) = [mount for mount in found.container["volumeMounts"] if mount["name"] == "keys"]
    (tmp_path / "kit/startup").symlink_to(tmp_path / "keys" / keys["subPath"])
    assert (tmp_path / "kit/local/written").exists()
    probes = free_port()
    arguments = in_kit([*entry_point("aggregator"), *found.container["args"]], tmp_path / "kit", probes)
    start(arguments).until("listens on").kill()


@needs_kubectl
@pytest.mark.parametrize("site", ROLES)
def test_probes_of_a_pod_tell_whether_its_process_lives_and_is_ready(
    manifests: dict[str, Manifests], tmp_path: Path, site: str
) -> None:
    container = manifests[site].container
    with kits(tmp_path, 1, settings=("privacy.visibility=individual",)) as federation:
        port = free_port()
        name, line = ("target", "listens on") if site == "clinic" else ("source-1", "trains on")
        process = federation.start(name, f"metrics.port={port}").until(line)
        answers = {
            kind: is_well(container[f"{kind}Probe"]["exec"]["command"], port)
            for kind in ("startup", "liveness", "readiness")
        }
        assert answers == {"startup": True, "liveness": True, "readiness": site == "clinic"}
        process.kill()
        assert not is_well(container["livenessProbe"]["exec"]["command"], port)


class Socket(NamedTuple):
    """A TCP socket of a process."""

    local: str
    port: int
    peer: str
    peer_port: int
    listens: bool


def sockets_of(process: Process) -> list[Socket]:
    return list(_sockets_of(process.process.pid))


def _sockets_of(pid: int) -> Iterator[Socket]:
    links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {str(link)[len("socket:[") : -1] for link in links if str(link).startswith("socket:[")}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            local, peer, state, inode = (line.split()[column] for column in (1, 2, 3, 9))
            if inode in inodes:
                yield Socket(*_address(local), *_address(peer), state == "0A")


def _address(text: str) -> tuple[str, int]:
    """``0100007F:1F90`` is 127.0.0.1:8080: words of four bytes, each in the processor's order."""
    host, port = text.split(":")
    words = [int(host[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)


@needs_kubectl
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp")
def test_a_network_policy_allows_what_processes_open_and_nothing_else(
    manifests: dict[str, Manifests], tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    settings = ("privacy.visibility=individual", "strategy.warm-up-rounds=1", f"task.data-dir={tmp_path}")
    with kits(tmp_path / "kits", 1, settings=settings, task="e2e_tasks:Endless", by_exec=True) as federation:
        # As in the pod: it listens on every address, at a port of its own
        probes = {"target": free_port(), "source-1": free_port()}
        listen = f"transport.listen=0.0.0.0:{federation.port}"
        target = federation.start("target", listen, f"metrics.port={probes['target']}").until("listens on")
        source = federation.start("source-1", f"metrics.port={probes['source-1']}").until("round 1")
        opened = {"clinic": sockets_of(target), "hospital-a": sockets_of(source)}
    policies = {site: manifests[site].one("NetworkPolicy")["spec"] for site in ROLES}
    for policy in policies.values():
        assert policy["podSelector"] == {}
        assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]

    # Whom the policy lets in: at the aggregator's port alone, and the port for probes is on the pod's own loopback.
    (rule,) = policies["clinic"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": PORT}]}
    listening = {site: {(one.local, one.port) for one in found if one.listens} for site, found in opened.items()}
    assert {port for host, port in listening["clinic"] if host != "127.0.0.1"} == {federation.port}
    assert {place for place in listening["clinic"] if place[0] == "127.0.0.1"} == {("127.0.0.1", probes["target"])}
    assert "egress" not in policies["clinic"]
    assert {one.port for one in opened["clinic"] if not one.listens} == {federation.port}  # it calls nobody

    # Whom a source reaches: one address and one port, those of the aggregator.
    assert policies["hospital-a"].get("ingress") is None
    assert listening["hospital-a"] == {("127.0.0.1", probes["source-1"])}
    called = {(one.peer, one.peer_port) for one in opened["hospital-a"] if not one.listens}
    assert called == {("127.0.0.1", federation.port)}
    (rule,) = policies["hospital-a"]["egress"]
    assert rule == {
        "to": [{"ipBlock": {"cidr": f"{ELSEWHERE}/32"}}],
        "ports": [{"protocol": "TCP", "port": PORT}],
    }
    (arrives,) = manifests["clinic"].one("Service")["spec"]["ports"]
    assert (arrives["port"], arrives["targetPort"]) == (PORT, PORT)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifests]:
    """With the component for the Prometheus Operator, turned on as the file says."""
    out = tmp_path_factory.mktemp("monitored") / "kits"
    found = deploy(out, "kubernetes", "--address", f"{ELSEWHERE}:{PORT}")
    for site in ROLES:
        file = found[site] / "kustomization.yaml"
        text, lines = re.subn("(?m)^# (components:|  - monitoring)$", r"\1", file.read_text())
        assert lines == 2
        file.write_text(text)
    return {site: Manifests(found[site], out / site) for site in ROLES}


def address_of_this_machine() -> str:
    """One that is not 127.0.0.1, as a pod has; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError:  # no way leads out
            return "127.0.0.2"
        host: str = probe.getsockname()[0]
        return host


@needs_kubectl
@pytest.mark.parametrize("site", ROLES)
def test_metrics_of_a_pod_are_read_from_outside_with_the_component_alone(
    manifests: dict[str, Manifests], monitored: dict[str, Manifests], tmp_path: Path, start: Start, site: str
) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for found, scraped in ((manifests, False), (monitored, True)):
        out, port, container = tmp_path / f"scraped-{scraped}", free_port(), found[site].container
        deploy(out, "kubernetes", "--address", f"{ELSEWHERE}:{free_port()}")
        arguments = in_kit([*entry_point(ROLES[site]), *container["args"]], out / site, port)
        process = start(arguments).until("listens on" if site == "clinic" else "trains on")
        path = monitored[site].one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["path"]
        url = f"http://{address_of_this_machine()}:{port}{path}"
        if scraped:
            with direct.open(url, timeout=10) as answer:
                assert "securefda_current_round" in answer.read().decode()
        else:
            with pytest.raises(OSError, match="refused"):
                direct.open(url, timeout=10)
        assert is_well(container["livenessProbe"]["exec"]["command"], port)
        process.kill()


@needs_kubectl
def test_a_disruption_budget_covers_the_pod_and_there_is_one(manifests: dict[str, Manifests]) -> None:
    for found in manifests.values():
        assert found.one("StatefulSet")["spec"]["replicas"] == 1
        assert found.one("PodDisruptionBudget")["spec"] == {"maxUnavailable": 0, "selector": {}}
        (claim,) = found.one("StatefulSet")["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] in [mount["name"] for mount in found.container["volumeMounts"]]
