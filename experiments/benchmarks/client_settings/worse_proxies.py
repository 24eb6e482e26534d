"""Proxy data that are worse than the server's rows of the clients' own data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedscout.engine.seeds import stream
from fedscout.experiments.benchmarks.client_settings.workshop import Workshop
from fedscout.experiments.studies.settings_tables.proxy_data import ProxyData, proxy_data
from fedscout.experiments.studies.settings_tables.synthetic_rows import synthetic_rows


def usual(workshop: Workshop) -> ProxyData:
    """Return the server's rows."""
    return workshop.proxy


def mislabelled(workshop: Workshop) -> ProxyData:
    """Return rows of which two fifths have a random label, those that score included."""
    return _relabelled(workshop, 0.4)


def meaningless(workshop: Workshop) -> ProxyData:
    """Return rows of which all labels are random: nothing can be learnt from them."""
    return _relabelled(workshop, 1.0)


def synthetic(workshop: Workshop) -> ProxyData:
    """Return as many rows, drawn by the class means and the covariance that clients tell of."""
    federation = workshop.ready.federation
    drawn = synthetic_rows(federation, workshop.config, len(workshop.proxy.labels))
    return proxy_data(replace(federation, server=drawn), workshop.seed, of_another=False)


def few(workshop: Workshop) -> ProxyData:
    """Return a quarter of the rows, of those that score as well."""
    proxy = workshop.proxy
    generator = stream(workshop.seed, "few-proxies")
    trained = np.sort(generator.permutation(proxy.num_trained)[: proxy.num_trained // 4])
    each = proxy.num_scored // proxy.num_classes
    places = np.arange(proxy.num_trained, len(proxy.labels)).reshape(-1, each)[:, : max(1, each // 4)].reshape(-1)
    kept = np.concatenate([trained, places])
    return replace(proxy, features=proxy.features[kept], labels=proxy.labels[kept], num_scored=len(places))


def _relabelled(workshop: Workshop, share: float) -> ProxyData:
    proxy = workshop.proxy
    generator = stream(workshop.seed, "relabelled-proxies")
    drawn = generator.permutation(proxy.labels)
    return replace(proxy, labels=np.where(generator.random(len(drawn)) < share, drawn, proxy.labels))


PROXIES: Mapping[str, Callable[[Workshop], ProxyData]] = {
    "usual": usual,
    "mislabelled": mislabelled,
    "meaningless": meaningless,
    "synthetic": synthetic,
    "few": few,
}
