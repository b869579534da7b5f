"""Colour names of WebShop's reward: an option that contains one of them counts as that colour."""

_NAMES = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
    camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry
    cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green
    grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot
    midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple
    rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan
    taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_NAMES.split())


def normalized(option: tuple[str, str] | str) -> tuple[str, str] | str:
    """Return the first colour in an option's value, or the option itself if there is none.

    A pair of name and value is a colour only if one of the two equals it: WebShop tests with `in`, which finds
    substrings in a string but whole members in a tuple.
    """
    return next((color for color in COLORS if color in option), option)
