"""English stop words, left out of the paper's F1 and of search queries."""

_WORDS = """
    a an the
    me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves
    this that these those there here
    who whom whose which what when where why how
    am is are was were be been being do does did doing have has had having
    can could might must shall should would cannot
    and or but nor if because as until while although though than so both either neither
    of at by for with about against between into through during before after above below to from up down in out on
    off over under upon onto within without among toward towards per via
    again further then once also only just very too not any all each every some such same other more most own
"""
ENGLISH = frozenset(_WORDS.split())
"""Words of other lists that are answers or parts of names are missing on purpose: `yes`, `no`, `one`, `i` (Elizabeth
I), `us` (U.S.), `may` (the month), `will` (Will Smith), halves of contractions (`t`, `don`)."""
