#!/usr/bin/env python3
"""What a release derives from the version and the changelog.

scripts/release.py check [TAG]             fails unless all files, and the tag if given, agree about the version
scripts/release.py notes [VERSION]         prints the changes of a version from CHANGELOG.md
scripts/release.py debian-changelog DATE   prints the changelog of the Debian package; DATE is an RFC 5322 date
scripts/release.py chart DIGEST IMAGE TO   copies the chart to the folder TO, with the image's name and digest filled in

Run it in the repository's root. Needs Python 3.10 and nothing else.
"""

import os
import pathlib
import re
import shutil
import sys

CHART = pathlib.Path("charts/weir")
# a version in a heading of the changelog, and what follows it: a date once it is released
HEADING = re.compile(r"^## (\d+\.\d+\.\d+[^ ,]*), (.+)$", re.MULTILINE)
UNRELEASED = "not yet released"
DATE = re.compile(r"^\d{4}-\d{2}-\d{2}$")
# what names a version of weir in a document or example: an image's tag, a file of a release, or a tag of the repository
NAMED = re.compile(r"\bweir:(\d+\.\d+\.\d+(?:-[0-9A-Za-z.]+)?)|\b(?:weir[_-]|TAG=v|tag --sign v)(\d+\.\d+\.\d+)")


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def field(key, text):
    """Returns the first value of a key in TOML; Python 3.10 cannot read TOML itself."""
    return re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE)[1]


def version():
    return field("version", read("Cargo.toml"))


def sections():
    """Returns the sections of the changelog: version, what follows it in the heading, and the text."""
    text = read("CHANGELOG.md")
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [(match[1], match[2], text[match.end() : end].strip()) for match, end in zip(found, ends)]


def lock_files():
    return sorted(path for path in pathlib.Path(".").glob("**/Cargo.lock") if "target" not in path.parts)


def documents():
    for folder in ("docs", "examples", "charts", "packaging", ".github"):
        yield from sorted(path for path in pathlib.Path(folder).glob("**/*") if path.suffix in (".md", ".yaml", ".yml"))
    yield pathlib.Path("README.md")


def check(tag=None):
    """Returns what disagrees with the version in Cargo.toml, as one line for each place."""
    wanted = version()
    problems = []

    def expect(place, found):
        if found != wanted:
            problems.append(f"{place}: version {found}, but Cargo.toml has {wanted}")

    for path in lock_files():
        for package in read(path).split("[[package]]"):
            if '\nname = "weir"\n' in package:
                expect(path, field("version", package))
    chart = read(CHART / "Chart.yaml")
    for key in ("version", "appVersion"):
        match = re.search(rf"^{key}: *\"?([^\"\n]+?)\"? *$", chart, re.MULTILINE)
        expect(f"{CHART / 'Chart.yaml'} ({key})", match and match[1])
    changes = sections()
    newest = changes[0] if changes else (None, "", "")
    expect("CHANGELOG.md (its first section)", newest[0])
    if not newest[2]:
        problems.append("CHANGELOG.md: its first section is empty")
    if tag is not None:
        expect("the tag" if tag.startswith("v") else f"the tag {tag}, which does not begin with v", tag.removeprefix("v"))
        if not DATE.match(newest[1]):
            problems.append(f"CHANGELOG.md: '## {wanted}, {newest[1]}' needs a date such as 2026-01-31 to be released")
    elif newest[1] != UNRELEASED and not DATE.match(newest[1]):
        problems.append(f"CHANGELOG.md: '{newest[1]}' is neither a date such as 2026-01-31 nor '{UNRELEASED}'")
    for path in documents():
        for number, line in enumerate(read(path).splitlines(), 1):
            for tagged, named in NAMED.findall(line):
                expect(f"{path}:{number}", tagged or named)
    return problems


def notes(wanted):
    for found, _, text in sections():
        if found == wanted:
            return text
    raise SystemExit(f"CHANGELOG.md has no section for {wanted}")


def debian_changelog(date):
    maintainer = field("maintainer", read("Cargo.toml"))
    return (
        f"weir ({version()}-1) unstable; urgency=medium\n\n"
        f"  * /usr/share/doc/weir/CHANGELOG.md lists the changes.\n\n"
        f" -- {maintainer}  {date}\n"
    )


def chart(digest, image, target):
    """Copies the chart, whose values then name this very image. IMAGE is REPOSITORY or REGISTRY/REPOSITORY."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise SystemExit(f"invalid digest '{digest}'; write sha256: and 64 hexadecimal digits")
    registry, _, repository = image.partition("/")
    if not repository:
        registry, repository = "", image
    target = pathlib.Path(target)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(CHART, target)
    values = read(target / "values.yaml")
    begin = values.index("\nimage:\n")
    end = values.index("\n  pullPolicy:", begin)
    section = values[begin:end]
    for key, value in (("registry", f'"{registry}"'), ("repository", repository), ("digest", digest)):
        section, count = re.subn(rf"^  {key}: .*$", f"  {key}: {value}", section, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"values.yaml: no image.{key}")
    (target / "values.yaml").write_text(values[:begin] + section + values[end:], encoding="utf-8")
    path = target / "Chart.yaml"
    text = read(path).rstrip("\n") + f"\n  artifacthub.io/images: |\n    - name: weir\n      image: {image}@{digest}\n"
    # the workflow knows where the repository is
    if "GITHUB_REPOSITORY" in os.environ:
        home = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
        text += f"  artifacthub.io/links: |\n    - name: changes\n      url: {home}/blob/v{version()}/CHANGELOG.md\n"
        text = f"home: {home}\nsources: [{home}]\n" + text
    path.write_text(text, encoding="utf-8")


def main(arguments):
    match arguments:
        case ["check", *tag] if len(tag) < 2:
            problems = check(*tag)
            for problem in problems:
                print(problem, file=sys.stderr)
            if problems:
                sys.exit(1)
            print(f"version {version()} everywhere")
        case ["notes", *wanted] if len(wanted) < 2:
            print(notes(wanted[0].removeprefix("v") if wanted else version()))
        case ["debian-changelog", date]:
            print(debian_changelog(date), end="")
        case ["chart", digest, image, target]:
            chart(digest, image, target)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
