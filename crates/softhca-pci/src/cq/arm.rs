//! The conditions under which a completion queue posts an event.
//!
//! A driver arms a queue with a word of three parts: the number of completions that the driver has taken, the kind of
//! completion that the driver waits for, and a counter of its events in two bits. The driver writes the word to the
//! doorbell record, and then to the doorbell page. An event is due as soon as there is a completion of that kind that
//! the driver had not taken and that no event has reported. If such a completion exists already, the event is due at
//! once, which closes the race between the driver's last look and its arming. An event disarms the queue; the next
//! event takes a new word. A completion that an event has reported causes no second event, even if the driver arms
//! before it polls: perftest does so, and takes each event for a completion.
//!
//! A doorbell names its queue, whose word counts as a request then. Doorbells of several queues fall onto one place of
//! a page, so one may be lost. So when a queue of a page is armed, the function compares the words of all queues of
//! that page, and a changed word counts as a request. The counter in two bits makes the word of a request after an
//! event differ from the word before, unless the driver has taken four events and no completion. Drivers begin with a
//! word of 0 in the record, and may arm by that very word; so the function writes a word that no driver writes
//! ([`UNARMED`]) into a new queue's record, and any later word is the driver's.
//!
//! A doorbell carries the word, too. The record may hold a later one by then, so both count, the doorbell's first. The
//! doorbell's word counts only if its counter of events is that of the record, and its counter of completions lies
//! between that of the word that counted last and that of the record. Any other word is older than an event that the
//! driver has taken, or is made of the halves of two doorbells. Two requests of which the driver has written both
//! doorbells between two looks leave one word in both places: a driver that asks for any completion and then at once
//! for a solicited one gets an event for the solicited one only. Doorbells that come as messages are taken one by one,
//! so there nothing is lost.

/// Counters of completions have 24 bits.
const MASK: u32 = 0xff_ffff;
/// Set where the driver waits for a solicited completion, or one in error.
const SOLICITED: u32 = 1 << 24;

/// The counter of events.
const EVENTS: u32 = 3 << 28;

/// The word of a queue that was never armed.
pub(crate) const UNARMED: u32 = u32::MAX;

/// Whether the completion counter `at` is beyond `taken`, in serial arithmetic.
fn beyond(at: u32, taken: u32) -> bool {
    let ahead = at.wrapping_sub(taken) & MASK;
    ahead != 0 && ahead <= MASK / 2
}

/// Whether the counter stood at `at` so long before `now` that serial arithmetic takes `at` for a later value.
fn is_long_ago(at: u32, now: u32) -> bool {
    now.wrapping_sub(at) & MASK > MASK / 2
}

/// A doorbell of a queue's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bell {
    /// The word names another queue.
    Others,
    /// The word names this queue; its request is not known.
    Named,
    /// The doorbell names this queue, and has this word.
    Word(u32),
}

/// What is known of a queue's arming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arm {
    /// The word that was taken as a request last.
    seen: Option<u32>,
    /// The request that waits.
    waits: Option<u32>,
    /// Completions written, and where behind the last one that was solicited or in error.
    written: u32,
    urgent: Option<u32>,
    /// Completions written when the last event was made.
    told: Option<u32>,
}

impl Arm {
    /// The page was rung, and the record holds `word`. Whether an event is due.
    pub(crate) fn look(&mut self, word: u32, bell: Bell) -> bool {
        let earlier = match bell {
            Bell::Word(earlier) if earlier != word && self.believes(earlier, word) => self.ask(earlier),
            _ => false,
        };
        if word == UNARMED || self.seen == Some(word) && bell == Bell::Others {
            return earlier;
        }
        // One that was due before has told of what this one would.
        self.ask(word) || earlier
    }

    /// Whether a doorbell's word can be that of a request which is no older than what is known, where the record holds
    /// another one.
    fn believes(&self, bell: u32, record: u32) -> bool {
        (bell ^ record) & EVENTS == 0
            && !beyond(bell, record & MASK)
            && self.seen.is_none_or(|seen| !beyond(seen, bell & MASK) || is_long_ago(seen, record))
    }

    /// The driver asks by this word. Whether an event is due. Who waits for any completion, and has had no event since,
    /// waits for any still, whatever he asks for.
    fn ask(&mut self, word: u32) -> bool {
        self.seen = Some(word);
        if word & SOLICITED == 0 || self.waits() != Some(false) {
            self.waits = Some(word);
        }
        self.due()
    }

    /// A completion was written. Whether an event is due.
    pub(crate) fn wrote(&mut self, urgent: bool) -> bool {
        let before = self.written;
        self.written = before.wrapping_add(1) & MASK;
        // A driver that has waited for a solicited completion since then had none. No driver asks from as long ago.
        self.waits =
            self.waits.map(|word| if is_long_ago(word, self.written) { word & !MASK | before } else { word });
        self.told = self.told.filter(|at| !is_long_ago(*at, self.written));
        self.urgent = self.urgent.filter(|at| !is_long_ago(*at, self.written));
        if urgent {
            self.urgent = Some(self.written);
        }
        self.due()
    }

    /// Whether it will make an event, and if only for a solicited completion.
    pub(crate) fn waits(&self) -> Option<bool> {
        self.waits.map(|word| word & SOLICITED != 0)
    }

    /// Whether the request that waits has what it waits for.
    fn due(&mut self) -> bool {
        let Some(word) = self.waits else { return false };
        let last = if word & SOLICITED != 0 { self.urgent } else { Some(self.written) };
        let news = last.filter(|last| self.told.is_none_or(|told| beyond(*last, told)));
        let due = news.is_some_and(|last| beyond(last, word & MASK));
        if due {
            (self.waits, self.told) = (None, Some(self.written));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a driver, and the adapter, may do next.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The adapter writes a completion.
        Write { urgent: bool },
        /// The driver takes all completions but this many.
        Take { but: u32 },
        /// The driver writes the word to the record.
        Record { solicited: bool },
        /// And to the page.
        Ring,
        /// The adapter sees a doorbell of the page: the last one of this queue, or that was lost.
        Rung { lost: bool },
        /// The adapter looks because of an earlier doorbell of another queue.
        Glance,
        /// The driver takes its event, if there is one.
        Event,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => any::<bool>().prop_map(|urgent| Step::Write { urgent }),
            2 => (0_u32..3).prop_map(|but| Step::Take { but }),
            2 => any::<bool>().prop_map(|solicited| Step::Record { solicited }),
            2 => Just(Step::Ring),
            3 => any::<bool>().prop_map(|lost| Step::Rung { lost }),
            1 => Just(Step::Glance),
            2 => Just(Step::Event),
        ];
        proptest::collection::vec(step, 0..60)
    }

    /// A driver that keeps the rules, and all completions that ever were.
    #[derive(Default)]
    struct Plain {
        urgent: Vec<bool>,
        taken: usize,
        sn: u32,
        record: u32,
        /// What the driver armed for and no event was made of: the position, and the kind.
        armed: Option<(usize, bool)>,
        /// That of those requests which the adapter has seen and which waits for any completion.
        any: Option<usize>,
        /// What the record asks for: the position, and the kind.
        asks: (usize, bool),
        /// The word that the adapter saw last, and its position.
        seen: Option<(u32, usize)>,
        /// The requests that the adapter has seen since the last event.
        requests: Vec<(usize, bool)>,
        /// Completions that there were when the last event was made.
        told: usize,
        events: u32,
        /// The doorbell of this queue that the adapter has not seen: its word, and what it armed for.
        bell: Option<(u32, usize, bool)>,
        /// Events taken since a completion was.
        idle_events: u32,
        /// The record may hold a word that it held before.
        seen_before: bool,
    }

    impl Plain {
        /// Whether there is a completion that this request is for, and that no event told of.
        fn has_news(&self, (from, solicited): (usize, bool)) -> bool {
            self.urgent[from.max(self.told)..].iter().any(|u| *u || !solicited)
        }
        /// Whether an event is owed: a completion that was armed for is there, and no event told of it.
        fn owed(&self) -> bool {
            self.armed.is_some_and(|armed| self.has_news(armed))
                || self.any.is_some_and(|from| self.has_news((from, false)))
        }
        /// Makes the event that the requests of which the adapter knows are owed. Returns whether there was one.
        fn serve(&mut self) -> bool {
            let due = self.requests.iter().any(|request| self.has_news(*request));
            if due {
                if self.owed() {
                    (self.armed, self.any) = (None, None);
                }
                self.requests.clear();
                (self.told, self.events) = (self.urgent.len(), self.events + 1);
            }
            due
        }
        fn ask(&mut self, word: u32, request: (usize, bool)) -> bool {
            self.seen = Some((word, request.0));
            self.requests.push(request);
            self.serve()
        }
        /// The adapter looks at the record, and at the doorbell if there is one. Returns whether it makes an event.
        fn look(&mut self, bell: Option<(u32, usize, bool)>) -> bool {
            if self.record == UNARMED {
                return false;
            }
            // The doorbell is older than the record, but the driver has taken no event in between.
            let timely = bell.filter(|(word, from, _)| {
                *word != self.record
                    && word >> 28 == self.record >> 28
                    && self.seen.is_none_or(|seen| seen.1 <= *from)
            });
            // Who waits for any completion still does so if he asks for a solicited one.
            if let Some((_, from, false)) = timely {
                self.any = Some(from);
            }
            let mut made = false;
            if let Some((word, from, solicited)) = timely {
                made |= self.ask(word, (from, solicited));
            }
            if bell.is_some() || self.seen.is_none_or(|seen| seen.0 != self.record) {
                if let Some((from, false)) = self.armed {
                    self.any = Some(from);
                }
                made |= self.ask(self.record, self.asks);
            }
            made
        }
    }

    proptest! {
        #[test]
        fn whoever_armed_has_an_event_for_what_came_since_whatever_the_order(
            start in prop_oneof![Just(0_u32), 0xff_fff0_u32..=0xff_ffff],
            steps in steps(),
        ) {
            let mut arm = Arm::default();
            let mut plain = Plain { record: UNARMED, ..Plain::default() };
            // Counters may wrap.
            arm.written = start;
            for step in steps.into_iter().chain([Step::Ring, Step::Rung { lost: false }]) {
                match step {
                    Step::Write { urgent } => {
                        plain.urgent.push(urgent);
                        prop_assert_eq!(arm.wrote(urgent), plain.serve(), "an event for what was asked for");
                    }
                    Step::Take { but } => {
                        let before = plain.taken;
                        plain.taken = plain.taken.max(plain.urgent.len().saturating_sub(but as usize));
                        if plain.taken > before {
                            plain.idle_events = 0;
                        }
                    }
                    Step::Record { solicited } => {
                        let ci = start.wrapping_add(plain.taken as u32) & MASK;
                        plain.record = plain.sn << 28 | u32::from(solicited) << 24 | ci;
                        plain.asks = (plain.taken, solicited);
                        plain.armed = Some(plain.asks);
                        plain.seen_before = plain.idle_events > 3;
                    }
                    Step::Ring => {
                        let bell = plain.armed.map(|(from, solicited)| (plain.record, from, solicited));
                        plain.bell = bell.or(plain.bell);
                    }
                    Step::Glance => {
                        let made = arm.look(plain.record, Bell::Others);
                        prop_assert_eq!(made, plain.look(None), "an event for what was asked for");
                    }
                    Step::Rung { lost } => {
                        let rung = plain.bell.take().filter(|_| !lost);
                        let bell = rung.map_or(Bell::Others, |(word, ..)| Bell::Word(word));
                        let made = arm.look(plain.record, bell);
                        prop_assert_eq!(made, plain.look(rung), "an event for what was asked for");
                        // Another doorbell of the page changes nothing.
                        prop_assert!(!arm.look(plain.record, Bell::Others));
                        let told = !plain.owed() || plain.events > 0;
                        prop_assert!(told || plain.seen_before, "an event is missing");
                    }
                    Step::Event if plain.events > 0 => {
                        plain.events -= 1;
                        plain.sn = (plain.sn + 1) & 3;
                        plain.idle_events += 1;
                        // He looks at all that there is, and arms anew.
                        plain.armed = None;
                    }
                    Step::Event => {}
                }
            }
        }
    }

    #[test]
    fn a_queue_that_was_never_armed_makes_no_event() {
        let mut arm = Arm::default();
        assert!(!arm.look(UNARMED, Bell::Others) && !arm.wrote(true) && !arm.look(UNARMED, Bell::Named));
        assert_eq!(arm.waits(), None);
        assert!(arm.look(0, Bell::Others), "by the word that most drivers begin with");
    }

    #[test]
    fn an_event_comes_at_once_for_what_is_there_and_once_for_a_word() {
        let mut arm = Arm::default();
        assert!(!arm.wrote(false));
        assert!(arm.look(0, Bell::Others), "one was written, and none taken");
        assert!(!arm.wrote(false) && !arm.look(0, Bell::Others), "no new word");
        assert!(!arm.look(1 << 28 | 2, Bell::Others), "both were taken");
        assert_eq!(arm.waits(), Some(false));
        assert!(arm.wrote(false));
        assert_eq!(arm.waits(), None);
    }

    #[test]
    fn who_arms_before_he_looks_has_no_second_event_of_the_same() {
        let mut arm = Arm::default();
        assert!(!arm.look(0, Bell::Named) && arm.wrote(false));
        assert!(!arm.look(1 << 28, Bell::Named), "the event told of it");
        assert!(arm.wrote(false), "and not of this one");
    }

    #[test]
    fn a_doorbell_that_names_the_queue_asks_even_by_a_word_that_was_seen() {
        let mut arm = Arm::default();
        assert!(!arm.wrote(false));
        assert!(arm.look(0, Bell::Others), "it may have been armed by that word");
        assert!(!arm.look(0, Bell::Others) && arm.waits().is_none());
        assert!(!arm.look(0, Bell::Named), "the event told of what there is");
        assert_eq!(arm.waits(), Some(false));
        assert!(arm.wrote(false));
    }

    #[test]
    fn who_waits_for_any_completion_does_so_until_there_is_an_event() {
        let mut arm = Arm::default();
        assert!(!arm.look(0, Bell::Others) && !arm.look(SOLICITED, Bell::Others));
        assert_eq!(arm.waits(), Some(false));
        assert!(arm.wrote(false));
        assert_eq!(arm.waits(), None, "an event disarms");
        assert!(!arm.look(1 << 28 | SOLICITED | 1, Bell::Others));
        assert!(arm.wrote(true) && !arm.wrote(true));
    }

    #[test]
    fn who_arms_before_he_takes_an_event_waits_for_any_completion_behind_it_too() {
        let mut arm = Arm::default();
        assert!(!arm.look(0, Bell::Named) && arm.wrote(false));
        // Armed again by the same word, as the event was not taken yet; then it is, and the next word is of another
        // kind.
        assert!(!arm.look(0, Bell::Named) && !arm.look(1 << 28 | SOLICITED | 1, Bell::Named));
        assert_eq!(arm.waits(), Some(false));
        assert!(arm.wrote(false));
        // The other way round the weaker request is forgotten.
        assert!(!arm.look(2 << 28 | SOLICITED | 2, Bell::Named) && !arm.look(2 << 28 | 2, Bell::Named));
        assert!(arm.wrote(false) && !arm.wrote(true));
    }

    #[test]
    fn who_asks_for_any_completion_by_a_doorbell_waits_for_any_though_the_record_has_another_word_by_now() {
        let mut arm = Arm::default();
        assert!(!arm.look(SOLICITED, Bell::Word(0)));
        assert_eq!(arm.waits(), Some(false));
        // The second doorbell comes later.
        assert!(!arm.look(SOLICITED, Bell::Word(SOLICITED)) && arm.wrote(false));
        assert_eq!(arm.waits(), None);
        // What the first one asks for is there: it has its event, and the second one waits.
        let mut arm = Arm::default();
        assert!(!arm.wrote(false));
        assert!(arm.look(SOLICITED | 1, Bell::Word(0)));
        assert_eq!(arm.waits(), Some(true));
        assert!(!arm.wrote(false) && arm.wrote(true));
    }

    #[test]
    fn a_doorbell_that_is_older_than_the_last_event_asks_for_nothing() {
        let mut arm = Arm::default();
        // Another queue's doorbell had the record looked at; this queue's own one is seen behind the event.
        assert!(!arm.look(0, Bell::Others) && arm.wrote(false));
        assert!(!arm.look(1 << 28 | SOLICITED | 1, Bell::Word(0)));
        assert_eq!(arm.waits(), Some(true));
        assert!(!arm.wrote(false) && arm.wrote(true));
    }

    #[test]
    fn a_doorbell_of_which_half_is_missing_asks_by_the_record_alone() {
        for sn in [0, 1] {
            let mut arm = Arm::default();
            assert!(!arm.wrote(false) && !arm.look(sn << 28 | SOLICITED | 1, Bell::Others));
            // The half that names the queue comes without the word.
            assert!(!arm.look(sn << 28 | SOLICITED | 1, Bell::Word(0)), "that one was taken");
            assert_eq!(arm.waits(), Some(true));
            assert!(!arm.look(sn << 28 | SOLICITED | 1, Bell::Word(sn << 28 | 2)), "beyond the record");
            assert_eq!(arm.waits(), Some(true));
        }
    }

    /// Completions go on for longer than serial arithmetic does.
    fn long_after(arm: &mut Arm) {
        assert!((0..MASK / 2 + 100).all(|_| !arm.wrote(false)), "nobody waits for those");
    }

    #[test]
    fn an_event_of_long_ago_keeps_no_other_back() {
        let mut arm = Arm::default();
        assert!(!arm.look(0, Bell::Others) && arm.wrote(true));
        long_after(&mut arm);
        let (word, earlier) = (1 << 28 | SOLICITED | arm.written, 1 << 28 | arm.written);
        assert!(!arm.look(word, Bell::Word(earlier)));
        assert_eq!(arm.waits(), Some(false), "the doorbell's word counts as well");
        assert!(arm.wrote(false));
    }

    #[test]
    fn who_waits_for_long_has_the_event() {
        let mut arm = Arm::default();
        assert!(!arm.look(SOLICITED, Bell::Others));
        long_after(&mut arm);
        assert!(!arm.wrote(false) && arm.wrote(true));
    }

    #[test]
    fn one_that_waits_for_a_solicited_completion_has_no_event_for_others() {
        let mut arm = Arm::default();
        assert!(!arm.look(SOLICITED, Bell::Others));
        assert!(!arm.wrote(false));
        assert!(arm.wrote(true));
        assert!(!arm.wrote(false));
        assert!(
            !arm.look(1 << 28 | SOLICITED | 1, Bell::Others),
            "the solicited one was not taken, but told of"
        );
        assert!(arm.wrote(true));
    }
}
