"""Finding a Java that Spark runs on. Installations are played by directories with a `release` file, or by scripts that answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import JavaMissing
from penstock.spark.java import find_java, java_version


def java(home: Path, version: str | None, says: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nOS_NAME="Linux"\n')
    return home


@pytest.mark.parametrize(
    ("version", "says", "major"),
    [
        ("17.0.15", "", 17),
        ("21", "", 21),
        ("1.8.0_392", "", 8),
        (None, 'openjdk version "11.0.2" 2019-01-15', 11),
        (None, "not a java at all", None),
    ],
)
def test_the_version_is_read_or_asked_for(tmp_path: Path, version: str | None, says: str, major: int | None) -> None:
    assert java_version(java(tmp_path / "jdk", version, says)) == major
    assert java_version(tmp_path / "nothing") is None


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = java(tmp_path / "home", "17.0.1"), java(tmp_path / "other", "21.0.1")
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environment, []) == home
    del environment["JAVA_HOME"]
    assert find_java(environment, []) == other


def test_a_link_on_the_path_is_followed_to_the_installation(tmp_path: Path) -> None:
    home, bin_directory = java(tmp_path / "jdk-17", "17.0.1"), tmp_path / "bin"
    bin_directory.mkdir()
    (bin_directory / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": f"{tmp_path}:{bin_directory}"}, []) == home


def test_usual_places_are_checked_and_the_oldest_that_will_do_is_taken(tmp_path: Path) -> None:
    java(tmp_path / "jvm" / "java-11", "11.0.1")
    java(tmp_path / "jvm" / "java-25", "25")
    seventeen = java(tmp_path / "jvm" / "java-17", "17.0.1")
    assert find_java({"PATH": ""}, [tmp_path / "gone", tmp_path / "jvm"]) == seventeen


def test_an_old_one_on_the_path_does_not_hide_a_new_one(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "11"), java(tmp_path / "jvm" / "new", "17")
    assert find_java({"PATH": str(old / "bin")}, [tmp_path / "jvm"]) == new


def test_without_java_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"there is none: .*openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)}, [])


def test_with_an_old_java_only_it_says_which_one_was_found(tmp_path: Path) -> None:
    old = java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing, match=f"only Java 11 in {old}: .*openjdk-17-jre-headless"):
        find_java({"PATH": str(old / "bin")}, [])


def test_a_java_home_that_does_not_fit_is_not_passed_over(tmp_path: Path) -> None:
    good = java(tmp_path / "good", "17")
    for home, text in ((tmp_path / "gone", "holds no Java"), (java(tmp_path / "old", "8"), "is Java 8")):
        with pytest.raises(JavaMissing, match=text):
            find_java({"JAVA_HOME": str(home), "PATH": str(good / "bin")}, [])
