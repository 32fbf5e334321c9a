"""Figures that are not curves of methods: drawn from the mappings under "figures" of an experiment's summary.

A figure has `name` (a word, part of its file's name), `title`, `caption`, `kind` and `panels`, each with a `title`.
What else a panel has depends on the kind:

    lines       x_label, y_label, optional log ("x", "y" or "xy"), and `lines`: x, y, optional error, label, style
                ("line", "points" or "bar"), colour (a number: the n-th of the palette; -1: grey) and width
    histograms  x_label, y_label, edges (k + 1), counts (k), and optional mark: {x, label}, a vertical line
    matrices    values (rows of numbers), optional text (rows of strings), and of the figure optional limits (low,
                high), colours ("diverging" or "rising") and ticks (a list of labels for both axes)
    graphs      nodes (x, y), edges (pairs of positions in nodes), colours (a number per node, as above), edge_colours
                (a number per edge) and optional labels (a string per node)
"""
