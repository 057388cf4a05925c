"""Reference engines that are wrong in one way each, named after the fault."""

from __future__ import annotations

from vtoken_sdk.testing.watched import WatchedEngine


class LostToken(WatchedEngine):
    """Forgets one of the tokens that moved."""

    def moved(self, ids, sources, destinations):
        after = super().moved(ids, sources, destinations)
        after[destinations[-1:]] = -1
        return after


class DoubleSlot(WatchedEngine):
    """Gives a block back that is still in use, so that somebody else gets it, too."""

    def commit(self, flight):
        freed = super().commit(flight)
        for req_id in flight.plan.req_ids:
            self.pool.release(self.running[req_id].blocks[-1:])
        return freed


class EarlyRead(WatchedEngine):
    """Does not wait for copies before it reads."""

    def wait_for_copies(self):
        pass


class StalePlan(WatchedEngine):
    """Carries out plans whatever has happened since."""

    def check_fresh(self, plan):
        pass
