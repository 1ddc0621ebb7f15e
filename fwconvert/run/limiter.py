"""Hand out the orders of a run with a limit: in the order of their sources, each with what it may give."""

from dataclasses import dataclass, field, replace

from fwconvert.errors import HubError
from fwconvert.job.orders import ConvertOrder, Unfetched
from fwconvert.limits import Limits
from fwconvert.run.prefetch import Ready


@dataclass
class Rations:
    """Holds back what has come until the limit lets it go."""

    limits: Limits
    # What waits, and what came: that does not come again.
    _here: dict[int, ConvertOrder] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _is_ending: bool = False
    _trouble: HubError | None = None

    def ready(self, coming: Ready) -> Ready:
        """Yield the orders that may be carried out; None: nothing just now.

        Ends when the limit is reached, and when the next source in order will
        not come: it failed, or is to be converted again. Raises HubError as
        `coming` does, once nothing more can be handed out.
        """
        while self._goes_on():
            item = None if self._is_ending else self._take(coming)
            yield item if isinstance(item, Unfetched) else self._next()
        if self._trouble is not None:
            raise self._trouble

    def _take(self, coming: Ready) -> Unfetched | None:
        try:
            item = next(coming)
        except StopIteration:
            self._is_ending = True
            return None
        except HubError as error:
            self._is_ending, self._trouble = True, error
            return None
        if item is None:
            return None
        order = item.order if isinstance(item, Unfetched) else item
        self._seen.add(order.source_index)
        if isinstance(item, Unfetched):
            return item
        self._here[order.source_index] = item
        return None

    def _goes_on(self) -> bool:
        limits = self.limits
        if limits.reached or limits.settled == limits.extent:
            return False
        index = limits.next
        if index is None or index in self._here:  # What is under way decides on what is behind it.
            return True
        return not self._is_ending and index not in self._seen

    def _next(self) -> ConvertOrder | None:
        index = self.limits.next
        if index is None or index not in self._here:
            return None
        answer = self.limits.answer(index)
        if isinstance(answer, str):
            return None
        self.limits.begun(index)
        order = self._here.pop(index)
        return replace(order, allowed_documents=answer.documents, allowed_tokens=answer.tokens)
