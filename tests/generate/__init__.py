"""Everything in this repository that is made from something else in it: ``make generate``."""

from __future__ import annotations

from pathlib import Path

from bench import at_size, zero3_gather, zero_step
from tests.axes import table as axes
from tests.e2e import mixed_long, mixed_table
from tests.generate import codes, evidence, failures, figures, launches, old_results, patches, readme
from tests.gpu import record as gpu
from tests.lab import families, pages
from tests.matrix import field_reports, render
from tests.matrix.store import Store
from tests.mishaps import table as mishaps
from tests.resume import table as resume
from tests.shipped import table as shipped


def wanted() -> dict[Path, str]:
    """Every generated file, and what it should hold."""
    measured = render.Measured(Store())
    made = {render.VERIFIED: render.verified_csv(measured)} | figures.wanted()
    for language in pages.LANGUAGES:
        made |= {
            pages.reference(language, "failures"): failures.page(language, measured.rows.values()),
            pages.reference(language, "patches"): patches.page(language, measured.verified()),
            pages.reference(language, "doctor-codes"): codes.page(language),
            pages.reference(language, "launches"): launches.page(language),
            pages.reference(language, "programs"): shipped.page(language),
            pages.reference(language, "compatibility"): render.page(measured, language),
            pages.reference(language, "field-reports"): field_reports.page(field_reports.read(), language),
            families.page(language): families.filled(language),
            mixed_table.page(language): mixed_table.filled(language),
            mixed_long.page(language): zero_step.filled(language, mixed_long.filled(language)),
            zero3_gather.page(language): zero3_gather.filled(language),
            mishaps.page(language): mishaps.filled(language),
            axes.page(language): axes.filled(language),
            resume.page(language): resume.filled(language),
            readme.PAGES[language]: readme.filled(language),
            old_results.PAGES[language]: old_results.filled(language),
            evidence.page(language): gpu.filled(
                language, at_size.filled(language, evidence.filled(language))
            ),
        }
    from tests.generate import punctuation  # which is a command too

    chinese = {path: punctuation.wide(made[path]) for path in made if path.suffix == ".md" and _chinese(path)}
    return made | chinese


def _chinese(path: Path) -> bool:
    return pages.DOCS["zh"] in path.parents or path == readme.PAGES["zh"]
