"""Three lines of diagnosis: the calibrated answer, a bar of its strength, and who."""

from __future__ import annotations

import pytest
from rich.text import Text

from fedscout.detectors.report import ROWS_BELONG_TOGETHER, CalibratedFinding
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.experiments.reports.study_console import SEVERITY_BAR, bar, diagnosis_lines, few_clients
from tests.search.recommenders.reports import report_of


def length(drawn: str) -> float:
    """Return how long a bar is, by the eighths that its last character has."""
    return sum(1.0 if character == "█" else (" ▏▎▍▌▋▊▉".index(character)) / 8 for character in drawn)


@pytest.mark.parametrize("strength", [0.0, 0.03, 0.25, 0.5, 0.765, 0.999, 1.0, 1.8, -0.2])
def test_a_bar_is_as_long_as_what_it_shows(strength: float) -> None:
    assert length(bar(strength)) == pytest.approx(SEVERITY_BAR * min(max(strength, 0.0), 1.0), abs=1 / 16)


def shown(calibrated: CalibratedFinding, names: Names = UNNAMED) -> list[Text]:
    report = report_of(divergence=0.5, outliers=(1,), calibrated=(calibrated,))
    return [*diagnosis_lines(report.model_copy(update={"names": names}), 80)]


def found(detected: bool) -> CalibratedFinding:
    return CalibratedFinding(
        name="outliers",
        rate=0.05,
        method="test",
        p_value=0.001 if detected else 0.9,
        effect=0.25,
        detected=detected,
        flagged_clients=(2,) if detected else (),
        sentence="Outlier clients, calibrated: told.",
    )


def test_the_calibrated_answer_alone_is_told_where_there_is_one() -> None:
    """The published rule flags client 1; the test no one, or client 2."""
    label, feature, outlier = (line.plain for line in shown(found(False)))
    assert label.split()[:3] == ["Label", "skew", "yes"]
    assert "0.5 vs 0.1" in label
    assert feature.split()[:3] == ["Feature", "skew", "no"]
    assert outlier.split()[:3] == ["Outlier", "clients", "no"]
    assert "client 1" not in outlier
    *_, outlier = (line.plain for line in shown(found(True), Names(clients=("a", "b", "c", "d"))))
    assert outlier.split()[2:] == ["yes", bar(0.25), "25%", "of", "labels", "client", "c"]


def test_what_was_not_measured_is_no_no() -> None:
    line = next(diagnosis_lines(report_of(divergence=None), 80)).plain
    assert line.split()[2:] == ["?", "not", "measured"]


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_what_rows_that_belong_together_leave_open_is_told_in_a_line(measured: bool, together: bool) -> None:
    note = f"{ROWS_BELONG_TOGETHER}, as they have near copies at the same client."
    report = report_of(divergence=0.5 if measured else None)
    report = report.model_copy(update={"notes": ("Another note.", note) if together else ("Another note.",)})
    lines = [line.plain for line in diagnosis_lines(report, 80)]
    assert len(lines) == 3 + (together and not measured)
    assert all("federation.group_column" in line and len(line) <= 80 for line in lines[3:])


def test_rows_that_clients_withhold_are_counted_in_a_line() -> None:
    plain = report_of(divergence=0.5)
    first, *others = plain.clients
    less = first.model_copy(update={"label_counts": (first.label_counts[0], 0)})
    report = plain.model_copy(update={"clients": (less, *others)})
    lines = [line.plain for line in diagnosis_lines(report, 80)]
    assert len(lines) == 1 + len([*diagnosis_lines(plain, 80)])
    assert f"{first.label_counts[1]:,} of {sum(own.num_rows for own in plain.clients):,} rows" in lines[-1]
    assert f"1 of {plain.num_clients} clients" in lines[-1]


def test_names_that_steer_a_terminal_are_shown_and_cut() -> None:
    *_, outlier = shown(found(True), Names(clients=("a", "b", "\x1b[31m" + "c" * 90, "d")))
    assert "\x1b" not in outlier.plain
    assert outlier.cell_len == 80


@pytest.mark.parametrize("width", range(8, 90))
def test_a_list_of_clients_fits_and_counts_them_all(width: int) -> None:
    line = few_clients(UNNAMED, (3, 5, 8, *range(10, 22)), width)
    named, _, rest = line.removeprefix("clients ").partition(" and ")
    others = int(rest.split()[0]) if rest else 0
    assert len(named.split(", ")) + others == 15
    assert len(line) <= width or named == "3"


def test_a_list_of_one_client_and_of_none() -> None:
    names = Names(tuple(f"ward {letter}" for letter in "ABCDE"))
    assert few_clients(names, (2,), 40) == "client ward C"
    assert few_clients(names, (2, 3, 4), 27) == "clients ward C and 2 others"
    assert few_clients(names, (), 40) == ""
