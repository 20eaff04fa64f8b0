"""The tables of runs that test restart: their columns, types and meanings, as `analysis.tables` has them of the others.

One row of `restarts` is one leg against the reference; facts of the run stand in each of its rows.
"""

from __future__ import annotations

import polars as pl

TEXT, INT, REAL, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
TEXTS = pl.List(pl.String())

RESTARTS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID of a run that tests restart: such runs are in no other table but laws and left_out"),
    "path": (TEXT, "run directory"),
    "experiment": (TEXT, "experiment file"),
    "site": (TEXT, "site name"),
    **dict.fromkeys(("framework", "model", "strategy", "format", "determinism"), (TEXT, "axis")),
    "optimizer": (TEXT, "setting"),
    "ranks": (INT, "of the reference"),
    "nodes": (INT, "axis"),
    "interval_steps": (INT, "axis"),
    "durable": (FLAG, "axis"),
    "repeat": (INT, "1-based"),
    "faults": (TEXT, "planted faults in words; empty for none"),
    "commit": (TEXT, "git commit of the code that ran"),
    "conditions": (TEXT, "digest of settings and identity: equal means measured alike"),
    "virtual_nodes": (FLAG, "one machine plays all nodes"),
    "device": (TEXT, "where the model lay: cpu, cuda"),
    "stop": (INT, "step behind which the checkpoint was taken"),
    "steps": (INT, "of the reference"),
    "killed": (INT, "rank that was killed in the midst of a save; null: the stop was a proper end"),
    "leg": (TEXT, "leg that is compared with the reference"),
    "about": (TEXT, "run_to_run, saving, restart, elsewhere or transplant"),
    "leg_ranks": (INT, "of this leg"),
    "points": (INT, "points of training that were compared, on every rank"),
    "exact": (FLAG, "all bits are equal; reason: reason"),
    "trains_exactly": (FLAG, "all bits of what is computed are equal; reason: reason"),
    "reason": (TEXT, "why nothing was compared"),
    **{
        f"{which}_{name}": (kind, words)
        for which in ("first", "training")
        for name, kind, words in (
            ("step", INT, "of the first difference (first: of anything; training: of what is computed)"),
            ("when", TEXT, "loaded: behind the restore; step: behind the step"),
            ("rank", INT, "lowest rank with it"),
            ("kind", TEXT, "kind of state that differs first"),
            ("tensor", TEXT, "its first tensor that differs"),
            ("elements", INT, "of that tensor that differ; null: no difference, or see its reason"),
            ("of_elements", INT, "it has"),
            ("ulp", INT, "largest distance in units in the last place; null: see reason"),
            ("largest", REAL, "largest absolute difference"),
            ("tensors", INT, "of that kind that differ at that point, over all ranks"),
            ("reason", TEXT, "why elements or distances are not known, or what they leave out"),
        )
    },
    "cause": (TEXT, "of the difference in training; null: none, or not found"),
    "kinds": (TEXTS, "kinds of state that differ behind the restore"),
    "cure": (TEXTS, "kinds that, taken from the reference, made bits of the run's restart agree; null: see notes"),
    "cured": (TEXT, "all: every bit agreed with them; training: all that is computed did; null: no cure"),
    "notes": (TEXTS, "what the driver said of the run"),
    "digest_s": (REAL, "median over steps of the slowest rank's time for the digests of a step"),
    "digest_bytes": (INT, "bytes that a rank digested at a step, most of all ranks"),
    "step_s": (REAL, "median over steps of the slowest rank's step in the reference"),
    **{
        f"{part}_s": (REAL, f"of the restart: {words}; reason: split_reason")
        for part, words in (
            ("detect", "death of the rank to the end of its launch"),
            ("suite", "our own work between two legs"),
            ("launch", "launcher to the last rank's first line of Python"),
            ("start", "imports and start of the framework"),
            ("agree", "ranks agree on a generation, pages are dropped"),
            ("read", "checkpoint read and taken over"),
            ("prepare", "behind that, before the first step"),
            ("first_step", "first step"),
        )
    },
    "split_reason": (TEXT, "why parts are not measured"),
    "cached": (REAL, "largest share over ranks of the checkpoint's pages in memory before the read; null: not known"),
}

CARRIED = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "kind": (TEXT, "kind of state"),
    "verdict": (TEXT, "saved, missing, altered, partly, unchanged (nothing is proved), not_applicable, not_measured"),
    "entries": (INT, "entries of that kind, on all ranks"),
    "restored": (INT, "of these, different in a fresh start and as before behind the restore"),
    "differing": (TEXTS, "keys that are not as before, with the ranks where"),
    "reason": (TEXT, "why it does not apply"),
}
