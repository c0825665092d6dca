"""What was measured: one row of JSON for each metric, with its samples. What they have to be stands in sim/claims.toml; `stria sim judge` judges."""
import json
import math

from .cluster import command


class Rows:
    """Samples by metric, in the order in which metrics came up."""

    def __init__(self, stria, head, repetitions, scale=1.0, creates=200, say=lambda _: None, preload=None):
        self.stria, self.head, self.repetitions, self.scale, self.creates, self.say = stria, head, repetitions, scale, creates, say
        self.preload = preload
        self.all = {}

    def scaled(self, size, unit=1 << 20):
        """Bytes of a file that is `size` bytes at full scale: a multiple of `unit`, at least one."""
        return max(int(size * self.scale) // unit, 1) * unit

    def command(self, *words):
        """Runs `stria WORDS`; what it printed."""
        return command(self.stria, *words)

    def begin(self, what):
        self.say(f"real: {what}")

    def add(self, metric, value, unit="", series=None):
        """A sample of a metric; `series`: the curve that it was taken from, by its x."""
        value = float(value)
        assert math.isfinite(value), f"{metric}: {value}"
        row = self.all.setdefault(metric, {"unit": unit, "samples": []})
        row["samples"].append(significant(value))
        if series:
            row.setdefault("series", []).append({str(k): significant(float(v)) for k, v in series.items()})

    def cannot(self, metric, why):
        """Says why a metric cannot be measured here."""
        self.all[metric] = {"cannot": why}

    def lines(self):
        for metric, row in self.all.items():
            row = {k: v for k, v in row.items() if v != ""}
            yield json.dumps({**self.head, "metric": metric, **row})


def significant(value):
    """To five figures."""
    return float(f"{value:.5g}")
