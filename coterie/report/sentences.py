"""The findings in words. Every number is computed from the runs."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.methods.settings import most_of
from coterie.report import certainty, choosing, coefficients, worth
from coterie.report.commands import compare_command, is_named
from coterie.report.comparison import (
    Comparison,
    MethodRuns,
    Spread,
    advantages,
    gains,
    pairs,
    spread,
    tally,
    trouble,
)
from coterie.report.descent import changes_clusters
from coterie.report.formats import listed, plain, plural, score, signed
from coterie.report.reading import RunData
from coterie.training.stopping import SETTLED

TIE = 0.0005
"""Half of the last digit shown (0.1 points, 0.1 %): smaller differences read as equal."""

PHRASES = {"one": "one global model", "self": "local models"}


@dataclass(frozen=True)
class Note:
    """Remark below the headline."""

    text: str
    caution: bool = False
    command: str = ""
    """Command that adds the missing part, if there is one."""


# ---- the headline --------------------------------------------------------------------------------------------


def headline(found: Comparison) -> str:
    """Return one sentence: the groups with their gain over other models, with their certainty, or with their score."""
    if found.main.diverged:
        return _diverged(found.main)
    about = _gain(found) or _sure(found.main) or _score_alone(found)
    return f"{_groups(found.main)}{f'; {about}' if about else ''}."


def _gain(found: Comparison) -> str:
    """Return the comparison of the main method with other models; empty if there are none."""
    return _against(found) or _alternatives(found)


def _diverged(main: MethodRuns) -> str:
    """Return text such as `The training diverged (seeds 0 and 2): the training loss is ...; lower lr ...`."""
    seeds = [str(run.seed) for run in main.diverged]
    which = f" ({'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)})" if len(main.runs) > 1 else ""
    said = main.diverged[0].metrics.why_diverged or "the training diverged"
    return f"{said[0].upper()}{said[1:]}.".replace("The training diverged", f"The training diverged{which}", 1)


def _groups(main: MethodRuns) -> str:
    clients = plural(_clients(main), "client")
    if main.groups == "one":
        return f"One global model for {clients}"
    if main.groups == "self":
        return f"{clients[0].upper()}{clients[1:]}, each training alone"
    used = _used(main)
    low, high = min(used), max(used)
    if high == 1:
        return f"One group: {'the only client has' if _clients(main) == 1 else f'all {clients} share'} one model"
    number = str(low) if low == high else f"{low} to {high}"
    given = " given beforehand" if main.groups == "truth" else ", as asked for," if _is_asked_for(main) else ""
    return f"{number} groups{given} among {clients}" + ("" if low == high else ", depending on the seed")


def _alternatives(found: Comparison) -> str:
    """Return the comparison with models fitted in addition to the run, in words; empty if there are none."""
    alternatives = worth.baselines_of(found.main.first)
    return worth.headline(alternatives) if alternatives is not None and _several(found.main) else ""


def _is_asked_for(main: MethodRuns) -> bool:
    """Return whether the number of groups was an option, and every run has exactly this number."""
    asked = [run.config.get("clusters") for run in main.runs if "chosen" not in run.metrics]
    return main.groups == "found" and asked == _used(main) and len(set(asked)) == 1


def _clients(main: MethodRuns) -> float:
    return Spread(tuple(float(len(run.clients)) for run in main.runs)).mean


def _used(main: MethodRuns) -> list[int]:
    """Return the number of clusters that have clients, for each seed."""
    return [len({row.cluster for row in run.clients}) for run in main.runs]


def _several(main: MethodRuns) -> bool:
    return main.groups == "self" or max(_used(main)) > 1


def _against(found: Comparison) -> str:
    """Return the comparison with global and local models in words; empty without baselines."""
    differences = [
        (PHRASES[base.groups], edge.mean)
        for base in found.baselines
        if (edge := advantages(found.main, base)) is not None
    ]
    if not differences:
        return ""
    if found.higher_is_better:
        return _points(differences, _several(found.main))
    return _percent(differences, _several(found.main))


def _points(differences: list[tuple[str, float]], several: bool) -> str:
    """Return text such as `their models beat one global model by 7.3 points and local models by 8.8`."""
    words, before = [], ""
    for phrase, edge in differences:
        verb = _verb(edge, several)
        if verb == before and abs(edge) >= TIE:
            words.append(f"and {phrase} by {100 * abs(edge):.1f}")
        else:
            size = "" if abs(edge) < TIE else f" by {100 * abs(edge):.1f} points"
            link = "" if not words else "and " if verb == before else "but "
            words.append(f"{link}{verb} {phrase}{size}")
        before = verb
    return ("their models " if several else "it ") + " ".join(words)


def _verb(edge: float, several: bool) -> str:
    verb = "equal" if abs(edge) < TIE else "beat" if edge > 0 else "lose"
    return (verb if several else verb + "s") + (" to" if verb == "lose" else "")


def _percent(differences: list[tuple[str, float]], several: bool) -> str:
    """Return text such as `the RMSE of their models is 71.2 % lower than with one global model and ...`."""
    words = []
    for phrase, edge in differences:
        if abs(edge) < TIE:
            words.append(f"the same as with {phrase}")
        else:
            words.append(f"{100 * abs(edge):.1f} % {'lower' if edge > 0 else 'higher'} than with {phrase}")
    return f"{'the RMSE of their models' if several else 'its RMSE'} is {' and '.join(words)}"


def _sure(main: MethodRuns) -> str:
    text = "" if max(_used(main)) == 1 else certainty.sure_clients([run.clients for run in main.runs])
    mixed = any(run.metrics.get("mixed") for run in main.runs)
    return f"{text}, but a cluster may hide more than one group" if text and mixed else text


def _score_alone(found: Comparison) -> str:
    value = found.main.over_seeds(found.score_name)
    return "" if value is None else f"mean {score_words(found)} {score(value.mean, found.score_name)}"


def score_words(found: Comparison) -> str:
    """Return `accuracy` or `RMSE`."""
    return "accuracy" if found.higher_is_better else "RMSE"


# ---- below the headline --------------------------------------------------------------------------------------


def support(found: Comparison) -> list[str]:
    """Return the facts below the headline."""
    main = found.main
    facts = [_how_measured(found)]
    if main.diverged:
        return facts
    chosen = [choosing.answer(main.first.metrics["chosen"])] if "chosen" in main.first.metrics else []
    sure = _sure(main) if _gain(found) else ""
    alternatives = worth.baselines_of(main.first)
    compared = alternatives.sentences() if alternatives is not None else []
    facts = [*chosen, *compared, *([f"{_capital(sure)}."] if sure else []), *facts]
    for base in found.baselines:
        edge = advantages(main, base)
        if edge is not None and len(edge.values) > 1:
            unit = "points" if found.higher_is_better else "%"
            each = listed([signed(f"{100 * v:+.1f}") for v in edge.values])
            facts.append(f"Seed by seed, the advantage over {PHRASES[base.groups]} is {each} {unit}.")
    ceiling = found.of("truth")
    if ceiling is not None and (edge := advantages(main, ceiling)) is not None:
        facts.append(_ceiling(ceiling.name, edge.mean, found))
    return facts


def _how_measured(found: Comparison) -> str:
    where = "training data" if _on_training(found.main) else "held-out data"
    seeds = found.main.seeds
    who = "honest clients" if "attackers" in found.main.first.metrics else "clients"
    over = f"{who} and {plural(len(seeds), 'seed')}" if len(seeds) > 1 else f"{who}, seed {seeds[0]}"
    return f"Scores are each client's {score_words(found)} on its {where}, averaged over {over}."


def _ceiling(name: str, edge: float, found: Comparison) -> str:
    if abs(edge) < TIE:
        return f"That is as good as with the true groups known ({name})."
    unit = "points" if found.higher_is_better else "%"
    side = "higher" if (edge > 0) == found.higher_is_better else "lower"
    size = f"{100 * abs(edge):.1f} {unit} {side}"
    return f"The {score_words(found)} is {size} than with the true groups known from the start ({name})."


def _on_training(main: MethodRuns) -> bool:
    return main.first.metrics.evaluated_on == "training data"


def notes(found: Comparison, unfinished: int = 0) -> list[Note]:
    """Return the notes below the headline, cautions first."""
    every = [run for method in found.methods for run in method.runs]
    candidates = [*_diverged_notes(found), _unfinished_note(unfinished), *_trouble_notes(every)]
    if found.main.diverged:  # nothing else matters now
        return [note for note in candidates if note is not None]
    candidates = [
        *_diverged_notes(found),
        _hidden_groups_note(found.main),
        _unsure_note(found.main),
        _diagnosis_note(found.main),
        _training_note(found.main),
        _attackers_note(found.main),
        _unfinished_note(unfinished),
        *_trouble_notes(every),
        _unused_note(found.main),
        _fit_note(found.main),
        _stopped_note(found.main),
        _uneven_note(found),
        _choice_note(found),
        _baseline_note(found),
    ]
    return [note for note in candidates if note is not None]


def _diverged_notes(found: Comparison) -> list[Note | None]:
    """Return a note for each method besides the main one that diverged."""
    others = [method for method in found.methods if method.diverged and method is not found.main]
    return [Note(f"{m.name} is not compared with. {_diverged(m)}", caution=True) for m in others]


def _hidden_groups_note(main: MethodRuns) -> Note | None:
    """Return the warning of the first seed that has one."""
    warned = [(run, text) for run in main.runs if (text := certainty.hidden_groups(run.metrics))]
    if not warned:
        return None
    run, text = warned[0]
    return Note(f"{_capital(text)}{_seed_words(main, run)}.", caution=True)


def _unsure_note(main: MethodRuns) -> Note | None:
    text = certainty.unsure_clients(main.first.clients)
    return Note(f"Of the clients that are not certain, {text}{_seed_words(main, main.first)}.") if text else None


def _seed_words(main: MethodRuns, run: RunData) -> str:
    return f" (seed {run.seed})" if len(main.runs) > 1 else ""


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _diagnosis_note(main: MethodRuns) -> Note | None:
    diagnosed = main.first.metrics.get("diagnosed")
    if diagnosed is None:
        return None
    return Note(f"The method {main.name} was chosen by a diagnosis of the clients: {diagnosed['reason']}")


def _training_note(main: MethodRuns) -> Note | None:
    if not _on_training(main):
        return None
    return Note(
        "No held-out data was given: scores are measured on the training data and flatter the models.",
        caution=True,
    )


def _attackers_note(main: MethodRuns) -> Note | None:
    run = main.first
    if "attackers" not in run.metrics:
        return None
    of = f"{run.metrics['attackers']} of {plural(len(run.clients), 'client')}"
    return Note(
        f"In this simulation {of} attack the training ({run.config['poison']}). Scores and agreement are "
        "those of the others.",
        caution=True,
    )


def _unfinished_note(unfinished: int) -> Note | None:
    if not unfinished:
        return None
    verb = "is" if unfinished == 1 else "are"
    return Note(f"{plural(unfinished, 'run')} of this comparison {verb} not finished and left out here.", caution=True)


def _trouble_notes(runs: list[RunData]) -> list[Note | None]:
    missing, rejected = trouble(runs)
    asked = sum(record.answered for run in runs for record in run.records) + missing + rejected
    return [
        Note(f"{plural(missing, 'answer')} of {asked} never came; the rounds went on without.", caution=True)
        if missing
        else None,
        Note(f"{plural(rejected, 'update')} of {asked} {_why_left_out(runs)} and were left out.", caution=True)
        if rejected
        else None,
    ]


def _why_left_out(runs: list[RunData]) -> str:
    """Return the reason why updates were left out: clients check their values, and the server notes what it refuses."""
    noted = any(record.rejected and record.notes for run in runs for record in run.records)
    return (
        "were not finite or refused (the notes of the records say why)" if noted else "had values that are not finite"
    )


def _unused_note(main: MethodRuns) -> Note | None:
    if main.groups != "found":
        return None
    short = [
        f"{used} of {run.config['clusters']} (seed {run.seed})"
        for run, used in zip(main.runs, _used(main), strict=True)
        if used < int(run.config.get("clusters", used)) and not changes_clusters(run.records)
    ]
    if not short:
        return None
    return Note(f"Not every cluster has clients in the end: {listed(short)} are in use.")


def _fit_note(main: MethodRuns) -> Note | None:
    caution = coefficients.could_fit_better(main.first.metrics)
    return Note(f"{_capital(caution)}.", caution=True) if caution else None


def _stopped_note(main: MethodRuns) -> Note | None:
    early = [
        f"{len(run.records)} of {most_of(run.config['rounds'])} rounds (seed {run.seed})"
        for run in main.runs
        if run.metrics.stopped not in (None, SETTLED)
    ]
    if not early:
        return None
    kept = " and kept the models with the lowest validation loss" if "best_rounds" in main.first.metrics else ""
    return Note(f"{main.name} stopped early{kept}: after {listed(early)}.")


def _uneven_note(found: Comparison) -> Note | None:
    apart = [b.name for b in found.baselines if 0 < len(pairs(found.main, b)) < max(len(found.main.runs), len(b.runs))]
    alone = [b.name for b in found.baselines if not pairs(found.main, b)]
    if alone:
        return Note(f"No seed is shared with {listed(alone)}, so no difference to it is given.", caution=True)
    return Note(f"Differences to {listed(apart)} use only the seeds that both have.") if apart else None


def _choice_note(found: Comparison) -> Note | None:
    rivals = [m.name for m in found.methods if m.groups == "found"]
    if len(rivals) < 2:
        return None
    best = f"{found.main.name}, the best of {listed(rivals)} here"
    return Note(f"The headline and the figures of single clients are about {best}.")


def _baseline_note(found: Comparison) -> Note | None:
    if worth.baselines_of(found.main.first) is not None:
        return None
    kinds = {method.groups for method in found.methods}
    missing = [PHRASES[kind] for kind in ("one", "self") if kind not in kinds]
    if not missing:
        return None
    how = "This command adds it:" if is_named(found.main.first) else "In Python, with the same arrays, this adds it:"
    return Note(
        f"There is no comparison with {listed(missing)} among these runs. {how}", command=compare_command(found.main)
    )


# ---- captions ------------------------------------------------------------------------------------------------


def gain_caption(found: Comparison, base: MethodRuns) -> str:
    """Return text such as `58 of 60 clients gain, 2 lose`."""
    up, down, same = tally(gains(found.main, base))
    text = f"{up} of {plural(up + down + same, 'client')} {'gain' if up != 1 else 'gains'}, {down} lose"
    return text + ("s" if down == 1 else "") + (f", {same} the same" if same else "")


def restarts_words(main: MethodRuns) -> str:
    """Return the cost of several restarts in words."""
    starts = int(main.first.config.get("restarts", 1))
    if starts < 2:
        return ""
    race = int(main.first.config.get("race", 0))
    if 0 < race < most_of(main.first.config.get("rounds", 0)):
        some = float(main.first.config.get("race_share", 1))
        return (
            f"{main.name} raced {starts} restarts for {race} rounds on {100 * some:.0f} % of the clients, then "
            "trained only the one with the lowest training loss. Bytes and seconds count the race."
        )
    each = spread(run.metrics.bytes_down / starts / 1e6 for run in main.runs)
    share = "" if each is None else f": about {plain(each.mean)} MB down for each"
    return (
        f"{main.name} trained {starts} restarts side by side and kept the one with the lowest training loss. "
        f"Bytes and seconds count all of them{share}."
    )
