"""The page of ``vtoken bench report``: result files in, one HTML file and one Markdown file out.

Data flows one way: ``folder`` reads results, ``sections`` turn each into ``content`` (tables, plots
and notes, with every number taken from the result or from ``paper``), ``html`` and ``markdown``
write the same content down.
"""
