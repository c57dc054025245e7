//! Event queue entries of 64 bytes, and the data of each kind of event.
//!
//! An entry's owner bit changes its value in each round of the queue, like a completion's; a driver sets it to 1 in all
//! entries before the first round.

use crate::codes::codes;
use crate::layout;

layout! {
    list LAYOUTS;

    /// An event queue entry.
    pub struct Eqe: 0x40 {
        /// What happened: an [`EventType`] code.
        EVENT_TYPE: 0x00 [23:16],
        /// More of that, such as a [`PortChangeSubtype`] code.
        EVENT_SUB_TYPE: 0x00 [7:0],
        /// What the event carries, in one of the layouts of this module.
        EVENT_DATA: 0x20 [u8; 28],
        /// Changes from round to round.
        OWNER: 0x3c [0],
    }

    /// [`EventType::Comp`]: an armed completion queue has a completion.
    pub struct CompEvent: 0x1c {
        /// The completion queue.
        CQ_NUMBER: 0x18 [23:0],
    }

    /// Events of queue pairs and shared receive queues.
    pub struct QpEvent: 0x1c {
        /// The queue pair, receive queue, send queue or shared receive queue.
        QPN_RQN_SQN: 0x18 [23:0],
    }

    /// [`EventType::CqError`]: a completion queue is in error.
    pub struct CqError: 0x1c {
        /// The completion queue.
        CQN: 0x00 [23:0],
        /// Why: a [`CqErrorSyndrome`](crate::CqErrorSyndrome) code.
        SYNDROME: 0x08 [7:0],
    }

    /// [`EventType::PageRequest`]: the adapter requests pages, or offers some back.
    pub struct PagesReqEvent: 0x1c {
        /// The function that asks.
        FUNCTION_ID: 0x00 [15:0],
        /// Pages of 4 KiB that it wants; a negative number gives that many back.
        NUM_PAGES: 0x04 [31:0],
    }

    /// [`EventType::PortChange`]: see [`PortChangeSubtype`].
    pub struct PortStateChangeEvent: 0x1c {
        /// The port, from 1.
        PORT_NUM: 0x08 [31:28],
    }

    /// [`EventType::Cmd`]: commands have ended.
    pub struct CmdInterCompEvent: 0x1c {
        /// A bit for each slot whose command has ended.
        COMMAND_COMPLETION_VECTOR: 0x00 [31:0],
    }

}

impl Eqe {
    /// The owner bit of entries that the adapter writes in the round in which the entry number `counter` lies, counted
    /// without end, of a queue of 2^`log_size` entries.
    #[inline]
    #[must_use]
    pub const fn sw_owner(counter: u32, log_size: u32) -> bool {
        crate::Cqe64::sw_owner(counter, log_size)
    }

    /// An event of this type.
    #[must_use]
    pub fn of(event: EventType) -> Self {
        Self::new().with(Self::EVENT_TYPE, event.code())
    }
}

codes! {
    /// The kind of an event.
    pub enum EventType {
        Comp = 0x00 "a completion queue has something",
        PathMig = 0x01 "a path has migrated",
        CommEst = 0x02 "communication is established",
        SqDrained = 0x03 "a send queue is drained",
        CqError = 0x04 "a completion queue is in error",
        WqCatasError = 0x05 "a work queue cannot go on",
        PathMigFailed = 0x07 "a path could not migrate",
        InternalError = 0x08 "internal error",
        PortChange = 0x09 "a port has changed",
        Cmd = 0x0a "commands have ended",
        PageRequest = 0x0b "the adapter wants pages, or has some to spare",
        PageFault = 0x0c "memory is not there",
        NicVportChange = 0x0d "the network interface's context has changed",
        EswFunctionsChanged = 0x0e "functions of the host have changed",
        VhcaStateChange = 0x0f "the state of a function has changed",
        WqInvalReqError = 0x10 "a work queue has met an invalid request",
        WqAccessError = 0x11 "a work queue has met an access violation",
        SrqCatasError = 0x12 "a shared receive queue cannot go on",
        SrqLastWqe = 0x13 "a queue pair takes no more from its shared receive queue",
        SrqRqLimit = 0x14 "a shared receive queue has few requests left",
        Gpio = 0x15 "a signal has come",
        PortModule = 0x16 "a port's module has changed",
        TempWarn = 0x17 "the adapter is hot",
        XrqError = 0x18 "an extended shared receive queue is in error",
        RemoteConfig = 0x19 "the configuration was changed from elsewhere",
        DbBfCongestion = 0x1a "there are too many doorbells",
        StallEvent = 0x1b "a virtual lane does not move",
        DctDrained = 0x1c "a dynamic connection is drained",
        DctKeyViolation = 0x1d "a dynamic connection's key is wrong",
        FpgaError = 0x20 "the programmable part is in error",
        FpgaQpError = 0x21 "a queue pair of the programmable part is in error",
        General = 0x22 "something else, see the subtype",
        MonitorCounter = 0x24 "a counter that is watched has moved",
        Pps = 0x25 "a pulse per second",
        DeviceTracer = 0x26 "the tracer has something",
        ObjectChange = 0x27 "an object has changed",
    }

    /// The change of a port.
    pub enum PortChangeSubtype {
        Down = 1 "it is down",
        Active = 4 "it is active",
        Initialized = 5 "it is initialised, and waits for the subnet manager",
        Lid = 6 "its local identifier",
        Pkey = 7 "its partition keys",
        Guid = 8 "its GUIDs",
        ClientRereg = 9 "the subnet manager wants all clients to register again",
    }
}

impl EventType {
    /// The event's bit in `EVENT_BITMASK` of [`CreateEqIn`](crate::command::eq::CreateEqIn), which has four words of 64
    /// bits: events 0 to 63 are in the first, bit 0 being the lowest.
    #[must_use]
    pub const fn mask(self) -> [u64; 4] {
        let mut mask = [0; 4];
        let code = self.code() as usize;
        mask[code / 64] = 1 << (code % 64);
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lies_as_stock_drivers_read_it() {
        let data = CompEvent::new().with(CompEvent::CQ_NUMBER, 0x41);
        let entry = Eqe::of(EventType::PortChange)
            .with(Eqe::EVENT_SUB_TYPE, PortChangeSubtype::Active.code())
            .with(Eqe::EVENT_DATA, *data.as_bytes())
            .with(Eqe::OWNER, true);
        let bytes = entry.as_bytes();
        assert_eq!((bytes[1], bytes[3], bytes[63]), (9, 4, 1));
        assert_eq!(bytes[0x20 + 24..0x20 + 28], 0x41_u32.to_be_bytes());
        assert_eq!(CompEvent::from_bytes(&entry.get(Eqe::EVENT_DATA)).unwrap(), data);
    }

    #[test]
    fn what_events_carry_fits_into_an_entry() {
        for layout in LAYOUTS.iter().filter(|layout| layout.name != "Eqe") {
            assert_eq!(layout.size, 28, "{}", layout.name);
        }
    }

    #[test]
    fn a_port_lies_in_the_upper_half_of_its_byte() {
        let event = PortStateChangeEvent::new().with(PortStateChangeEvent::PORT_NUM, 1);
        assert_eq!(event.as_bytes()[8], 0x10);
    }
}
