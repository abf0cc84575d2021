"""What runs each command of the documents: the table that tests/unit/test_documented_commands.py holds them against."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Ran:
    """Run by the unit test itself, as it is written.

    Attributes:
        prints: expression that the output has, or "JSON" for a schema.
        examples: what is put in the place of placeholders.
    """

    prints: str
    examples: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Make:
    """A target of the Makefile, run by the unit test with `--dry-run`.

    Attributes:
        recipe: words of what it would run.
        program: what of it is Python of ours and has to know its arguments; asked for `--help`.
    """

    recipe: str
    program: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """Run by another test, as `path::function`, or by a file that CI runs; it has these words."""

    test: str
    words: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """Run by no test."""

    why: str


Proof = Ran | Make | Shown | Impossible

_CI = Shown(".ci/run", "make test")
_LINT = Shown(".ci/run", "make lint")
_LAB = "tests/machine/lab/test_nothing_left.py::test_down_removes_a_lab_of_another_process"
_LOOK = "tests/machine/nodeagent/test_look_into.py"
_UPDATE = "tests/machine/nodeagent/test_one_file.py::test_an_update_of_its_own_program_unpacks_the_new_one"
_STORY = Shown("tests/e2e/test_demos.py::test_a_demo_is_told_to_its_end", '"--no-print-directory", target]')
_TOLD = Shown("tests/lab/watched.py::watch_node", "scenario.run()")
_SEED = _STORY
_SEED_TOLD = Shown("tests/lab/watched.py::watch_seed", "story.go_on()")
_RELEASE = "tests/integration/packaging/test_release.py"
_SMALL = "tests/e2e/test_measuring.py"
_APPLY = "tests/machine/nodeagent/test_foreground.py::test_what_the_cluster_wants_is_applied"
_RESET = Shown("tests/machine/nodeagent/test_reset.py::test_a_machine_is_as_before_and_joins_again", "RESET")
_GARDENLET = "tests/integration/gardenlet/test_process.py::test_from_a_token_to_heartbeats"
_CHART = Shown("tests/integration/packaging/test_chart_install.py::test_the_documented_command_works", "helm(")
_NO_ENGINE = Impossible("CI has no container engine")
_KIND = Shown("tests/unit/packaging/test_kind.py::test_what_is_missing_is_named_with_the_next_step", "up(")
_KIND_DOWN = Shown("tests/unit/packaging/test_kind.py::test_the_cluster_is_removed_where_it_is", "down(")

_IMAGE = "tests/integration/packaging/test_image.py"
_PACKAGE = "tests/machine/nodeagent/test_package.py::test_it_lies_beside_what_gardener_brought"

_NODE_AGENT: dict[str, tuple[Proof, ...]] = {
    "gardener-node-agent --version": (Ran(r"^gardener-node-agent v\S+ \(gardener-agents v\S+\)$"),),
    "gardener-node-agent version": (Ran(r"^gardener-node-agent v.*\npython 3\.\d+\.\d+, linux/x86_64$"),),
    "gardener-node-agent --config-dir=DIR": (
        Shown("tests/machine/nodeagent/test_faults.py::test_an_unusable_configuration_is_explained", "--config-dir="),
    ),
    "systemctl stop gardener-node-agent": (Shown(_APPLY, "without_service("),),
    "gardener-node-agent apply --once": (Shown(_APPLY, "apply("),),
    "gardener-node-agent bootstrap": (
        Shown("tests/machine/nodeagent/test_join.py::test_the_second_bootstrap_changes_nothing", '"bootstrap"'),
    ),
    "gardener-node-agent reset": (_RESET,),
    "gardener-node-agent reset --config-dir=/var/lib/gardener-node-agent": (_RESET,),
    "gardener-node-agent status": (Shown(f"{_LOOK}::test_a_joined_machine_is_done", '"status"'),),
    "gardener-node-agent status --wait --timeout 120 -o json > status.json": (
        Shown(f"{_LOOK}::test_a_unit_that_fails_is_named", '"--wait", "--timeout"'),
    ),
    "gardener-node-agent plan --osc new.yaml": (
        Shown(f"{_LOOK}::test_what_is_planned_is_what_is_done_and_planning_changes_nothing", "plan(worker"),
    ),
    "gardener-node-agent diagnose --bundle node.tar.gz": (
        Shown(f"{_LOOK}::test_nothing_is_broken_and_then_something_is", '"--bundle"'),
    ),
    "gardener-node-agent diagnose": (Shown(f"{_LOOK}::test_nothing_is_broken_and_then_something_is", '"diagnose"'),),
    "gardener-node-agent validate config-v1.150.0.yaml osc.yaml": (
        Shown("tests/unit/test_documented_commands.py::test_validate_prints_what_the_document_shows", "validate"),
    ),
    "gardener-node-agent schema KIND": (Ran("JSON", {"KIND": "osc"}),),
    **{
        f"gardener-node-agent schema {kind}": (Ran("JSON"),)
        for kind in ("diagnose", "plan", "status", "validate", "version")
    },
    "install -m 0755 build/bin/gardener-node-agent /opt/bin/gardener-node-agent": (Shown(_UPDATE, "README.md"),),
    "install -m 0755 gardener-node-agent /opt/bin/gardener-node-agent.new": (Shown(_UPDATE, "docs/migrate.md"),),
    "mv /opt/bin/gardener-node-agent.new /opt/bin/gardener-node-agent": (Shown(_UPDATE, "docs/migrate.md"),),
    "apt-get install ./build/deb/gardener-node-agent_*_amd64.deb": (Shown(_PACKAGE, "apt("),),
    "systemctl restart gardener-node-agent": (Shown(_UPDATE, "documented("),),
}
_GARDENLET_COMMANDS: dict[str, tuple[Proof, ...]] = {
    "python -m gardenlet --config=/etc/gardenlet/config/config.yaml": (
        Shown(_GARDENLET, "process.start()"),
        Shown("tests/lab/garden/gardenlet.py", 'program: Sequence[str] = (sys.executable, "-m", "gardenlet")'),
    ),
    "gardenlet status": (Shown(_GARDENLET, "process.status()"),),
    "gardenlet validate FILE...": (Ran("", {"FILE...": "packaging/deb/gardenlet/config-example.yaml"}),),
    "gardenlet schema config": (Ran("JSON"),),
    "gardenlet schema status": (Ran("JSON"),),
    "helm upgrade --install gardenlet packaging/charts/gardenlet --namespace garden --create-namespace --values seed.yaml": (
        _CHART,
    ),
}
_TARGETS: dict[str, tuple[Proof, ...]] = {
    "make help": (Ran("^  make demo "),),
    "make demo": (Make("-m tests.lab demo --agent binary", "-m tests.lab demo --agent binary"), _STORY, _TOLD),
    "make demo AGENT=source": (Make("demo --agent source", "-m tests.lab demo --agent source"), _STORY, _TOLD),
    "make demo KEEP=1": (Make("--keep", "-m tests.lab demo --keep"), _STORY, _TOLD),
    "make demo-seed": (Make("-m tests.lab demo-seed", "-m tests.lab demo-seed"), _SEED, _SEED_TOLD),
    "make test": (Make("-m pytest"), _CI),
    "make test ARGS='-m integration'": (Make("-m integration"), _CI),
    "make unit": (Make("-m pytest"), _CI),
    "make unit ARGS='-k journal'": (Make("-k journal"), _CI),
    "make lint": (Make("ruff check ."), _LINT),
    "make format": (Make("ruff format ."), _LINT),
    "make documents": (Make("scripts/metrics_reference.py", "scripts/metrics_reference.py"), _LINT),
    "make venv": (Make("scripts/make-venv.sh .venv"), _CI),
    "make lock": (
        Make("uv pip compile"),
        Shown("tests/unit/test_repository.py::test_runtime_pins_are_the_development_pins", "lock"),
    ),
    "make binary": (
        Make("packaging/onefile/build.py"),
        Shown("tests/integration/packaging/test_programs.py::test_make_has_nothing_to_do_after_a_build", '"binary"'),
    ),
    "make deb": (
        Make("packaging/deb/build.py"),
        Shown(f"{_RELEASE}::test_everything_is_built_from_a_clean_checkout", "Building binary, deb, image of "),
    ),
    "make image": (
        Make("packaging/image/build.py"),
        Shown(f"{_IMAGE}::images", '"make", "image"'),
    ),
    **{
        f"skopeo copy oci:build/image/{name}:0.1.0 docker://registry.example.com/{name}:0.1.0": (
            Shown(f"{_IMAGE}::test_the_documented_copy_takes_all_of_it", "skopeo copy"),
        )
        for name in ("gardener-node-agent", "gardenlet")
    },
    "make release-check": (
        Make("scripts/release_check.py", "scripts/release_check.py"),
        Shown(f"{_RELEASE}::test_everything_is_built_from_a_clean_checkout", '"--no-print-directory", "release-check"'),
    ),
    "make lab-shell NODE=worker-1": (Make("-m tests.lab shell worker-1"), Shown(_LAB, '"shell"')),
    "make lab-down": (Make("-m tests.lab down"), Shown(_LAB, '"down"')),
    "make pictures": (
        Make("-m tests.lab pictures", "-m tests.lab pictures"),
        Shown("tests/e2e/test_dashboards.py::test_pictures_are_drawn_of_the_answers", "graphs("),
    ),
    "make bench": (Make("-m tests.bench ", "-m tests.bench"), Shown(f"{_SMALL}::test_bench", '"bench"')),
    "make bench-scale": (
        Make("-m tests.bench.scale", "-m tests.bench.scale"),
        Shown(f"{_SMALL}::test_bench_scale", '"bench-scale"'),
    ),
    "make bench-gardenlet": (
        Make("-m tests.bench.gardenlet", "-m tests.bench.gardenlet"),
        Shown(f"{_SMALL}::test_bench_gardenlet", '"bench-gardenlet"'),
    ),
    "make chaos": (Make("-m tests.chaos", "-m tests.chaos"), Shown(f"{_SMALL}::test_chaos", "make(target")),
    "make chaos-full": (
        Make("-m tests.chaos --full", "-m tests.chaos --full"),
        Shown(f"{_SMALL}::test_chaos", "make(target"),
    ),
    "make kind": (Make("packaging/kind/up.sh"), _KIND),
    "make kind-down": (Make("packaging/kind/down.sh"), _KIND_DOWN),
}
_LAB_COMMANDS: dict[str, tuple[Proof, ...]] = {
    "python -m tests.lab prepare": (Shown("Makefile", "-m tests.lab prepare"), _CI),
    "python -m tests.lab up": (Shown(_LAB, '"up"'),),
    "python -m tests.lab node add worker-1": (Shown(_LAB, '"node", "add"'),),
    "python -m tests.lab node add NAME [--join]": (
        Shown(_LAB, '"node", "add"'),
        Shown("tests/support/worker.py::join", "run_bootstrap("),
    ),
    "python -m tests.lab node reboot NAME [--power]": (Shown(_LAB, '"node", "reboot"'),),
    "python -m tests.lab shell worker-1": (Shown(_LAB, '"shell"'),),
    "python -m tests.lab shell NAME": (Shown(_LAB, '"shell"'),),
    "python -m tests.lab status": (Shown(_LAB, '"status"'),),
    "python -m tests.lab down": (Shown(_LAB, '"down"'),),
    "python -m tests.lab demo [--keep] [--agent source]": (_STORY, _TOLD),
    "python -m tests.chaos --repeat FILE": (Shown(f"{_SMALL}::test_a_kept_case_is_repeated", '"--repeat"'),),
    "python scripts/draw_graphs.py gardener-node-agent --prometheus http://localhost:9090 --ask": (
        Shown("tests/e2e/test_dashboards.py::test_every_query_has_data", '"--ask"'),
    ),
    "python scripts/draw_graphs.py gardenlet --prometheus http://localhost:9090 --minutes 60 --output /tmp/pictures": (
        Shown("tests/e2e/test_dashboards.py::test_pictures_are_drawn_of_the_answers", "--output="),
    ),
    "docker exec gardener-agents-worker /opt/bin/gardener-node-agent status": (_NO_ENGINE,),
    "docker exec gardener-agents-worker /opt/bin/gardener-node-agent diagnose": (_NO_ENGINE,),
}
_TYPED = "tests/machine/nodeagent/test_documented.py"
_OF_OTHERS: dict[str, tuple[Proof, ...]] = {
    **{
        line: (Shown(_TYPED, f'"{line}":'),)
        for line in (
            "journalctl -u gardener-node-agent",
            "journalctl -u <unit>",
            "systemctl status <unit>",
            "systemctl status containerd",
            "systemctl list-jobs",
            "systemctl restart <unit>",
            "curl localhost:2751/healthz?verbose",
            "curl -k https://<api-server>/healthz",
        )
    },
    "systemctl status": (Shown(_TYPED, '"systemctl status <unit>":'),),
    "systemctl restart": (Shown(_TYPED, '"systemctl restart <unit>":'),),
    "helm uninstall gardenlet --namespace garden": (
        Shown(
            "tests/integration/packaging/test_chart_install.py::test_a_bootstrap_secret_does_not_come_back",
            'release("uninstall")',
        ),
    ),
    "helm template": (Shown("tests/support/chart.py::template", 'helm("template"'),),
    **{
        line: (Impossible(f"CI has no {line.split()[0]}"),)
        for line in (
            "kubectl exec",
            "kubectl exec deploy/gardenlet -- gardenlet status",
            "kubectl -n kube-system get secret NAME -o yaml",
            "kubectl get csr",
            "skopeo inspect",
            "kind load image-archive FILE --name gardener-agents",
        )
    },
}
COMMANDS: dict[str, tuple[Proof, ...]] = {
    **_NODE_AGENT,
    **_GARDENLET_COMMANDS,
    **_TARGETS,
    **_LAB_COMMANDS,
    **_OF_OTHERS,
}
"""Each command as it stands in a document, with what runs it."""
