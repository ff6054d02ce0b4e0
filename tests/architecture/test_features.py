"""A feature is one folder with known file roles, registered by one line of the parts list."""

from typing import get_args

import pytest

from perdure.core.push.effect import PushEffect
from perdure.core.run.effect import Effect, StartRun
from perdure.server.features import FEATURES, make_registry
from tests.architecture.source import MODULES, ROOT, Module

ROLES = {
    "__init__": "the FEATURE value",
    "rules": "pure: values in, values out",
    "records": "what is stored",
    "operations": "what the engine decides",
    "loops": "what runs by itself",
    "routes": "HTTP in",
    "views": "JSON out",
    "settings": "what operators choose",
}
"""Roles of files. A qualifier may stand before one, as in `incoming_routes`."""
OWN_NAMES = {
    "model_calls/completions": "the client of one kind of model provider",
    "webhooks/secrets": "how webhook secrets are made, checked and sealed",
}
"""Files with a job of their own, and which."""

IN_FEATURES = [one for one in MODULES if one.room == "features" and one.place.count("/") > 1]
FOLDERS = sorted({one.place.split("/")[1] for one in IN_FEATURES})


def role_of(module: Module) -> str:
    stem = module.path.stem
    return stem if stem == "__init__" else stem.rpartition("_")[2]


@pytest.mark.parametrize("module", IN_FEATURES, ids=lambda module: module.place)
def test_a_file_of_a_feature_has_a_known_role(module: Module) -> None:
    name = module.place.removeprefix("features/").removesuffix(".py")
    assert role_of(module) in ROLES or name in OWN_NAMES, f"{module.place} has no known role"


def test_files_with_names_of_their_own_exist() -> None:
    assert {name for name in OWN_NAMES if not (ROOT / f"features/{name}.py").exists()} == set()


@pytest.mark.parametrize("module", IN_FEATURES, ids=lambda module: module.place)
def test_a_feature_imports_of_another_feature_only_rules(module: Module) -> None:
    own = module.place.split("/")[1]
    for name, line in module.imports():
        parts = name.split(".")
        if parts[:2] != ["perdure", "features"] or parts[2] in (own, "feature"):
            continue
        assert parts[-1].endswith("rules"), f"{module.place}:{line} imports {name}"


@pytest.mark.parametrize("module", IN_FEATURES, ids=lambda module: module.place)
def test_rules_of_a_feature_import_only_the_core_and_rules(module: Module) -> None:
    if role_of(module) != "rules":
        return
    for name, line in module.imports():
        parts = name.split(".")
        if parts[0] == "perdure":
            is_pure = parts[1] == "core" or (parts[1] == "features" and parts[-1].endswith("rules"))
            assert is_pure, f"{module.place}:{line} imports {name}"


def test_every_feature_is_registered_under_the_name_of_its_folder() -> None:
    assert [feature.name.replace(" ", "_") for feature in FEATURES] == FOLDERS


def test_every_effect_is_carried_out() -> None:
    # A new run is not a follow-up: the transaction that decided on it takes it in at once.
    assert make_registry().effects == {*get_args(Effect), *get_args(PushEffect)} - {StartRun}
