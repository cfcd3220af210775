"""Every experiment of the paper, run by ``approxkmv reproduce``.

One folder for each figure: ``settings.json`` (what is claimed and what is measured), ``run.py``
(measures and keeps records), ``plot.py`` (reads records; pictures, tables and verdicts) and a
``README.md``. Measurements are lines of JSON that are only ever added to, so a run can be
interrupted and taken up again; everything else is derived from them.
"""
