"""Values of labels: bounded in number and length, and without secrets.

A time series exists for every value, and batches name upstreams and models freely. So what the settings name
is always a label of its own, others are until there are too many, and the rest is `other`.
"""

from collections.abc import Iterable, Mapping

from batchline.config.settings import ANY_MODEL, ServerSettings
from batchline.governance.operations import FUNCTION, url_of
from batchline.governance.registry import Registry
from batchline.model import Claim
from batchline.model.emission import PYTHON
from batchline.secrets.addresses import public_url
from batchline.upstreams import urls

OTHER = "other"
# Values that the settings do not name, in the life of a process.
_MAX_VALUES = 100
_MAX_LENGTH = 120


class BoundedLabels:
    """Values of one label."""

    def __init__(self, known: Iterable[str] = (), maximum: int = _MAX_VALUES) -> None:
        self._known = frozenset(known)
        self._maximum = maximum
        self._more: set[str] = set()

    def of(self, value: str) -> str:
        """The value, or `other` if there are too many already."""
        if value in self._known or value in self._more:
            return value
        if len(self._more) >= self._maximum or len(value) > _MAX_LENGTH:
            return OTHER
        self._more.add(value)
        return value


class UpstreamNames:
    """Names of upstreams: those of the settings, and otherwise their URLs without secrets."""

    def __init__(self, settings: ServerSettings, operations: Registry) -> None:
        self.of_keys = _names_of_keys(settings, operations)
        anything = (each.name for each in settings.upstreams if ANY_MODEL in each.models)
        # The upstream of models that no upstream names.
        self.other = next(anything, OTHER)
        named = [each.name for each in settings.upstreams]
        self._upstreams = BoundedLabels([*named, self.other])
        self._models = BoundedLabels(model for each in settings.upstreams for model in each.models)
        # An upstream is displayed without the credentials in its URL.
        self._by_url = {_public(each.base_url): each.name for each in reversed(settings.upstreams)}

    def displayed(self, upstream: str) -> str:
        """A name or a URL, as a name or a URL without secrets."""
        if not upstream.startswith(urls.SCHEMES):
            return upstream
        public = _public(upstream)
        return self._by_url.get(public, public)

    def upstream_label(self, upstream: str) -> str:
        """The same, as a label."""
        return self._upstreams.of(self.displayed(upstream))

    def claim_label(self, claim: Claim) -> str:
        """The label of the upstream that a worker sends these items to."""
        usual = claim.key if claim.key.startswith(PYTHON) else self.other
        named = claim.settings.upstream or claim.sender
        return self.upstream_label(named or self.of_keys.get(claim.key, usual))

    def model_label(self, model: str | None) -> str:
        return "" if model is None else self._models.of(model)


def _public(url: str) -> str:
    return public_url(urls.normalized(url))


def _names_of_keys(settings: ServerSettings, operations: Registry) -> Mapping[str, str]:
    """The upstream of each routing key that the settings name: models, operations and URLs. A Python
    operation is its own upstream, governed or not."""
    names = {url_of(each.name): PYTHON + each.name for each in operations.all() if each.executor == FUNCTION}
    for upstream in settings.upstreams:
        models = (model for model in upstream.models if model != ANY_MODEL)
        own = (url_of(each.name) for each in operations.all() if each.upstream == upstream.name)
        for key in (*models, *own, urls.normalized(upstream.base_url)):
            names.setdefault(key, upstream.name)
    return names
