"""Sections of reflections in the forms in which models write them, and texts that only mention the words."""

import pytest

from eval.report.telemetry import read_structure
from retroformer.config.file import load, load_domains
from retroformer.method.prompts import load_pack
from tests.support.runs import ROOT

STRUCTURED = [
    "Reflection: I searched the wrong page.\nNew plan: Search the film first.",
    "Reflection: I searched the wrong page. New plan: search the film first.",
    "reflection:\nI searched the wrong page.\n\nnew plan:\n1. Search the film.",
    "### Reflection\nI searched the wrong page.\n### New Plan\nSearch the film.",
    "**Reflection:** I searched the wrong page.\n\n**New plan:** Search the film.",
    "**Reflection**: I was wrong.\n**New plan**\n- Search the film.",
    "1. Reflection: I was wrong.\n2. New plan: search the film.",
    "1) **Reflection**\nI was wrong.\n2) **New plan**\nSearch.",
    "NEW PLAN: Search the film.\nREFLECTION: I was wrong.",
    "Here is my answer.\n- Reflection : I was wrong!\n- My new plan: Search the film.",
    "__Self-reflection__: wrong page.\n\n# The new plan\n\nSearch.",
    # The prompt has ended with the title of the first section.
    "I searched the singer, who is not in the film. New plan: search the film, and answer with its director.",
    "I ran out of steps before I read the page.\n\n**New plan:** Search the film first.",
]
UNSTRUCTURED = [
    "",
    "I was wrong. Next time I will search the film.",
    "On reflection I was wrong, so my new plan is to search the film.",
    "Upon reflection: I was wrong.",
    "Reflection\nNew plan",
    "Reflection:\n\nNew plan:\n",
    "The question asks about the song Reflection; search for Christina Aguilera.",
    "Reflections on the plan: none.",
]


@pytest.mark.parametrize("text", STRUCTURED)
def test_both_sections_are_read_in_any_common_form(text: str) -> None:
    assert read_structure(text) == (True, True)


@pytest.mark.parametrize("text", UNSTRUCTURED)
def test_words_in_a_sentence_and_titles_without_text_are_no_sections(text: str) -> None:
    assert read_structure(text) == (False, False)


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("New plan: search the film.", (False, True)),
        ("Reflection: I was wrong. Search the film next time.", (True, False)),
        ("Reflection: I was wrong.\nNew plan:", (True, False)),
        ("Reflection:\nNew plan: search the film.", (False, True)),
    ],
)
def test_a_single_section_is_not_structured(text: str, sections: tuple[bool, bool]) -> None:
    assert read_structure(text) == sections


@pytest.mark.parametrize("name", ["hotpotqa", "alfworld", "webshop", "domains"])
def test_retroformer_s_configs_show_the_reflector_structured_examples(name: str) -> None:
    path = ROOT / "configs" / "paper" / f"{name}.yaml"
    for experiment in load_domains(path) if name == "domains" else [load(path)]:
        pack = load_pack(experiment.actor.prompts, experiment.environment.name)
        assert "New plan" in pack.reflect
        assert len(pack.reflect_examples) == 2
        for example in pack.reflect_examples:
            assert read_structure(example.partition(pack.ask)[2]) == (True, True)
