"""``oodles detectors``."""

import typer


def detectors() -> None:
    """List the stages that a detector can be made of, and the other detectors."""
    from oodles.detectors import ScoreDetector, Shape, Sparsifier, default_detector, detector_list
    from oodles.detectors.registry import entries

    groups: dict[str, list[str]] = {"stages, joined by +": [], "scores, last in a chain": [], "other detectors": []}
    stages, scores, others = groups.values()
    for name, entry in entries().items():
        stage, score = issubclass(entry.kind, Shape | Sparsifier), issubclass(entry.kind, ScoreDetector)
        line = f"  {name:16} {entry.summary}" + (f" ({entry.paper})" if entry.paper else "")
        (stages if stage else scores if score else others).append(line)
    for title, lines in groups.items():
        typer.echo("\n".join([f"{title}:", *lines]))
    typer.echo("for example:\n" + "\n".join(f"  {detector.spec}" for detector in detector_list()))
    typer.echo(f"{len(entries())} names; if none is given, {default_detector().spec} is used")
