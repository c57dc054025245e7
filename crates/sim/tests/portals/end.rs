//! Checks at the end of a run, when the network is quiet: no state is left beyond the expected.

use portals::v4::NiFail;

use crate::host::{BOX, FLOW, LOG, MD_OF_SET, WINDOW};
use crate::ops::Expect;
use crate::world::{Checked, World};

impl World {
    /// Counts, refusals and every byte.
    pub(crate) fn check_host(&mut self, h: usize) -> Checked<()> {
        let quiet = self.report.faults == 0;
        let host = self.hosts[h].as_ref().expect("all are up in the end");
        let counts = host.counts.iter().chain(&host.window_counts).chain([&host.log.1]);
        for (i, count) in counts.enumerate().filter(|(i, _)| *i != MD_OF_SET) {
            let now = host.ni.ct_get(count.ct).unwrap();
            if now.success + now.failure != count.expected || now.failure < count.failed {
                let (expected, failed) = (count.expected, count.failed);
                return Err(
                    self.broken(format!("n{h}: count {i} is {now:?}, not {expected}, {failed} failed"))
                );
            }
        }
        let status = self.status(h);
        let refused = |fail: NiFail| {
            let of = |expect: Expect| match expect {
                Expect::Only(f) | Expect::OkOr(f) => f == fail,
                Expect::Ok => false,
            };
            let refused = self.ops.iter().filter(|op| op.dst == h && of(op.expect) && op.seen.is_none());
            refused.count() as u64
        };
        let dropped = refused(NiFail::Dropped) + refused(NiFail::PtDisabled);
        let wanted = [dropped, refused(NiFail::PermViolation), refused(NiFail::OpViolation)];
        let fits = if quiet { status == wanted } else { (0..3).all(|i| status[i] <= wanted[i]) };
        if !fits {
            return Err(
                self.broken(format!("n{h}: it refused {status:?}, and should have refused {wanted:?}"))
            );
        }
        let arenas = [&host.payload, &host.replies, &host.operands, &host.scratch, &host.buffers];
        let window = host.window.iter().map(|(arena, _)| arena);
        for (i, arena) in arenas.into_iter().chain(window).enumerate() {
            if let Some(wrong) = arena.wrong_anywhere() {
                return Err(self.broken(format!("n{h}: memory {i}: {wrong}")));
            }
        }
        if (host.replies.taken(), host.operands.taken()) != (0, 0) {
            return Err(self.broken(format!("n{h}: the memory of operations was not given back")));
        }
        let holdings = host.node.holdings();
        if !holdings.is_at_rest() {
            return Err(self.broken(format!("n{h}: nothing is under way, and it holds {holdings:?}")));
        }
        if host.node.counts().malformed + host.node.counts().strangers > 0 {
            return Err(self.broken(format!("n{h}: honest peers are blamed: {:?}", host.node.counts())));
        }
        Ok(())
    }
    /// All is freed, and nothing is in use.
    pub(crate) fn free(&mut self, h: usize) -> Checked<()> {
        let mut host = self.hosts[h].take().expect("all are up in the end");
        let free = || {
            let ni = &host.ni;
            for receive in &host.receives {
                if let Some(handle) = receive.handle.filter(|_| receive.took == 0) {
                    ni.me_unlink(handle)?;
                }
            }
            for overflow in host.overflows.iter().filter(|o| !o.unlinked) {
                ni.me_unlink(overflow.handle)?;
            }
            for entry in host.flow.iter().filter(|e| !e.took) {
                ni.me_unlink(entry.handle)?;
            }
            for (_, handle) in &host.window {
                ni.me_unlink(*handle)?;
            }
            ni.me_unlink(host.log.0)?;
            for md in host.mds {
                ni.md_release(md)?;
            }
            for pt in [BOX, WINDOW, FLOW, LOG] {
                ni.pt_free(pt)?;
            }
            for count in host.counts.iter().chain(&host.window_counts).chain([&host.log.1]) {
                ni.ct_free(count.ct)?;
            }
            ni.eq_free(host.eq)?;
            ni.eq_free(host.flow_eq)
        };
        free().map_err(|error: portals::v4::Error| self.broken(format!("n{h}: not to be freed: {error}")))?;
        host.receives.clear();
        drop(host);
        Ok(())
    }
}
