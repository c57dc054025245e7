//! The rules for the IPv4 Identification of a flow's next packet.
//!
//! Pure rules over numbers: the Identifications that a flow leads to, and the conclusion from a packet whose ICRC is
//! right with another Identification. The module `flow` computes the ICRCs, and documents the error probability that
//! each rule leaves.

use core::time::Duration;

use hca_core::Instant;

/// Packets of a train at most, and so how far the number steps back behind a train that was cut.
const BEHIND: u16 = 64;
/// Datagrams that may be lost or overtaken in a row before the next one's number is a jump.
const AHEAD: u16 = 256;
/// Both of them on a flow whose packets arrive damaged.
const NARROW: u16 = 8;
/// Damaged packets in a row that leave the flow's window as wide as it is.
const TRIES: u8 = 16;
/// Time in which one more is allowed.
const TRY_AGAIN: Duration = Duration::from_millis(256);
/// Packets in a row that fit nothing, the last of which shows that the host follows no rule.
const RULELESS: u8 = 3;
/// Packets in a row that were predicted, after which a host follows a rule again.
const REGULAR: u16 = 8;

/// A number that was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    ident: u16,
    at: Instant,
}

impl Mark {
    /// Whether a number may follow this one, or precede it. Linux adds up to one for each tick of 1 ms (or longer)
    /// that passed to the numbers it gives out without a socket's own counter.
    fn leads_to(self, ident: u16, now: Instant, narrow: bool) -> bool {
        let (behind, ahead) = if narrow { (NARROW, NARROW) } else { (BEHIND, AHEAD) };
        let idle_ms = now.since(self.at).as_millis();
        let ahead = u16::try_from(u128::from(ahead) + idle_ms).unwrap_or(u16::MAX);
        self.ident.wrapping_sub(ident) < behind || ident.wrapping_sub(self.ident) <= ahead
    }
}

/// What all flows of one host have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// The last number of that flow of it which others followed.
    mark: Option<Mark>,
    /// The flows share one counter.
    shared: bool,
    /// The numbers follow no rule.
    ruleless: bool,
    /// The last packet with "don't fragment" otherwise than `may_fragment` says, if the last first packet of a flow was
    /// one.
    strange: Option<Mark>,
    /// It does not set "don't fragment".
    pub(crate) may_fragment: bool,
}

impl Host {
    pub(crate) const NEW: Self =
        Self { mark: None, shared: false, ruleless: false, strange: None, may_fragment: false };

    /// Another flow's turn comes; this one's last number was that.
    pub(crate) fn left(&mut self, flow: &Numbers) {
        self.mark = Some(Mark { ident: flow.last, at: flow.at });
    }
}

/// What a packet says that is right by another Identification than the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its flow's first one: any number is right.
    First,
    /// A number that the flow steps back to.
    Back,
    /// A number that the flow, its host or a refused packet leads to, or any on a host without a rule.
    Found,
    /// As `Found`, and the first that shows that the host follows no rule.
    Ruleless,
    /// Not to be believed: nothing leads to this number.
    Odd,
}

/// The numbers of one flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// Number of the datagram that is being checked, or comes next.
    pub(crate) base: u16,
    /// Number of the packet that came last.
    pub(crate) last: u16,
    /// When it came.
    pub(crate) at: Instant,
    /// A packet of it was found right.
    pub(crate) known: bool,
    /// Datagrams begin at 0.
    zero_based: bool,
    /// Number of the last packet that was not predicted: where a row of predicted ones began.
    row: u16,
    /// The last packet that was refused for its number.
    odd: Mark,
    /// `last` at that time.
    odd_last: u16,
    /// Packets refused so in a row.
    refused_run: u8,
    /// Damaged packets that may still come before the window is narrowed.
    tries: u8,
    /// When `tries` was last brought up to date.
    tried: Instant,
}

impl Numbers {
    /// A flow of which nothing is known. A sender without a counter begins at 0, so another number is expected, and the
    /// first packet is one that was not expected.
    pub(crate) const NEW: Self = Self {
        base: u16::MAX,
        last: 0,
        at: Instant::ZERO,
        known: false,
        zero_based: false,
        row: 0,
        odd: Mark { ident: 0, at: Instant::ZERO },
        odd_last: 0,
        refused_run: 0,
        tries: TRIES,
        tried: Instant::ZERO,
    };

    /// The datagram ends: what number begins the next?
    #[inline]
    pub(crate) fn end(&mut self) {
        self.base = if self.zero_based { 0 } else { self.base.wrapping_add(1) };
    }

    /// A packet came that no Identification makes right.
    pub(crate) fn damaged(&mut self, now: Instant) {
        self.refill(now);
        self.tries = self.tries.saturating_sub(1);
    }

    fn refill(&mut self, now: Instant) {
        let more = now.since(self.tried).as_nanos() / TRY_AGAIN.as_nanos();
        if more > 0 {
            self.tries = (u128::from(self.tries) + more).min(TRIES.into()) as u8;
            self.tried = now;
        }
    }

    /// What packet `k` of its datagram says, which is right by this number. `strange`: with "don't fragment" as the
    /// host is not known to set it, on a flow of which nothing is known.
    pub(crate) fn judge(
        &mut self,
        host: &mut Host,
        now: Instant,
        k: u16,
        ident: u16,
        strange: bool,
    ) -> Verdict {
        self.refill(now);
        let verdict = self.verdict(host, now, k, ident, strange);
        if verdict == Verdict::Odd {
            self.odd = Mark { ident, at: now };
            self.odd_last = self.last;
            return verdict;
        }
        self.refused_run = 0;
        self.known = true;
        self.zero_based = ident == k;
        self.base = ident.wrapping_sub(k);
        (self.row, self.last, self.at) = (ident, ident, now);
        verdict
    }

    fn verdict(&mut self, host: &mut Host, now: Instant, k: u16, ident: u16, strange: bool) -> Verdict {
        if self.last != self.odd_last || self.at > self.odd.at {
            // Predicted packets came since: the refused one was damaged, or late.
            self.refused_run = 0;
        }
        let narrow = self.tries == 0;
        let follows_odd = self.refused_run > 0 && self.odd.leads_to(ident, now, narrow);
        let near_host = host.mark.is_some_and(|mark| mark.leads_to(ident, now, narrow));
        if !self.known {
            if strange {
                let before = host.strange.replace(Mark { ident, at: now });
                if !before.is_some_and(|mark| mark.leads_to(ident, now, false)) {
                    return Verdict::Odd;
                }
                host.may_fragment = !host.may_fragment;
            }
            host.strange = None;
            host.shared = near_host;
            return Verdict::First;
        }
        // A row this long is none by chance.
        host.ruleless &= self.last.wrapping_sub(self.row) < REGULAR;
        let behind = if narrow { NARROW } else { BEHIND };
        // Behind a train that was cut on its way comes the number behind that which it began with.
        if ident == self.row.wrapping_add(1) || self.last.wrapping_add(1).wrapping_sub(ident) <= behind {
            return Verdict::Back;
        }
        let next = Mark { ident: self.base.wrapping_add(k), at: self.at };
        let led_to = next.leads_to(ident, now, narrow) || host.shared && near_host || follows_odd;
        if led_to || host.ruleless {
            return Verdict::Found;
        }
        self.refused_run += 1;
        if self.refused_run < RULELESS {
            return Verdict::Odd;
        }
        host.ruleless = true;
        Verdict::Ruleless
    }
}
