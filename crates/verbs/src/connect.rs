//! Endpoints: the data by which two queue pairs connect, and the options of a connection.

use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

use hca_core::{
    AckTimeout, AddressVector, DeviceError, Gid, Lid, Mtu, Psn, QpAttr, QpState, QpType, Qpn,
    RNR_RETRY_INFINITE, RnrTimer, StaticRate,
};

use crate::{ConnectError, ExchangeError, ParseEndpointError};

/// The data that one end of a connection must know of the other: plain data, which programs exchange by any means. It
/// prints and parses as one line of text.
///
/// ```
/// # use hca_verbs::Endpoint;
/// let line = "rc,qpn=0x000012,psn=0x00abcd,mtu=1024,rd=16,gid=::ffff:127.0.0.1";
/// let endpoint: Endpoint = line.parse()?;
/// assert_eq!(endpoint.to_string(), line);
/// # Ok::<(), hca_verbs::ParseEndpointError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "Said"))]
pub struct Endpoint {
    /// Service of the queue pair.
    pub service: QpType,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
    /// The largest path MTU that the port carries.
    pub mtu: Mtu,
    /// The READs and atomics that the queue pair serves at once.
    pub rd_atomic: u8,
    /// The GID of its port.
    pub gid: Gid,
    /// The LID of its port on an InfiniBand subnet; 0 on RoCE, where the text omits it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub lid: Lid,
}

/// A peer's endpoint as it was parsed.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct Said {
    service: QpType,
    qpn: Qpn,
    psn: Psn,
    mtu: Mtu,
    rd_atomic: u8,
    gid: Gid,
    #[serde(default)]
    lid: Lid,
}

#[cfg(feature = "serde")]
impl TryFrom<Said> for Endpoint {
    type Error = ParseEndpointError;
    fn try_from(said: Said) -> Result<Self, ParseEndpointError> {
        let Said { service, qpn, psn, mtu, rd_atomic, gid, lid } = said;
        Self { service, qpn, psn, mtu, rd_atomic, gid, lid }.checked()
    }
}

impl Endpoint {
    /// The path to the endpoint's port, for datagrams that name their sender.
    pub fn av(&self) -> AddressVector {
        AddressVector { dgid: self.gid, dlid: self.lid, ..AddressVector::default() }
    }

    /// Sends this endpoint over a stream and receives the peer's; both ends call this, over TCP or a socket pair.
    /// Afterwards the program can use the stream.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(qp: &QueuePair<Rc>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut stream = std::net::TcpStream::connect("server:7471")?;
    /// let remote = qp.endpoint().exchange(&mut stream)?;
    /// qp.connect(&remote, &ConnectOptions::default())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The stream failed, or the received line is not an endpoint.
    pub fn exchange<S: Read + Write + ?Sized>(&self, stream: &mut S) -> Result<Self, ExchangeError> {
        stream.write_all(format!("{self}\n").as_bytes())?;
        stream.flush()?;
        let mut line = Line::default();
        loop {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            if let Some(endpoint) = line.push(byte[0]) {
                return endpoint;
            }
        }
    }

    /// Exchanges endpoints like [`exchange`](Self::exchange), over a tokio stream.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    #[cfg(feature = "tokio")]
    pub async fn exchange_async<S>(&self, stream: &mut S) -> Result<Self, ExchangeError>
    where
        S: ::tokio::io::AsyncRead + ::tokio::io::AsyncWrite + Unpin + ?Sized,
    {
        use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
        stream.write_all(format!("{self}\n").as_bytes()).await?;
        stream.flush().await?;
        let mut line = Line::default();
        loop {
            let byte = stream.read_u8().await?;
            if let Some(endpoint) = line.push(byte) {
                return endpoint;
            }
        }
    }

    /// Fails if the number is not an ordinary queue pair's.
    fn checked(self) -> Result<Self, ParseEndpointError> {
        let refuse = |what| Err(ParseEndpointError { what });
        match self {
            Self { qpn, .. } if !qpn.is_ordinary() => refuse("qpn"),
            Self { gid, .. } if gid.is_multicast() => refuse("gid"),
            Self { lid, .. } if lid.raw() != 0 && !lid.is_unicast() => refuse("lid"),
            _ => Ok(self),
        }
    }

    /// Whether both ports are in one InfiniBand subnet, where LIDs are enough.
    fn is_near(&self, other: &Self) -> bool {
        let [here, there] = [self, other].map(|end| &end.gid.0[..8]);
        self.lid.raw() != 0 && other.lid.raw() != 0 && here == there
    }
}

#[cfg(feature = "serde")]
fn is_zero(lid: &Lid) -> bool {
    lid.raw() == 0
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = match self.service {
            QpType::Rc => "rc",
            QpType::Uc => "uc",
            QpType::Ud => "ud",
            QpType::XrcIni => "xrc-ini",
            QpType::XrcTgt => "xrc-tgt",
            QpType::Rd => "rd",
            QpType::Eec => "eec",
        };
        let Self { qpn, psn, mtu, rd_atomic, gid, lid, .. } = self;
        write!(f, "{service},qpn={qpn},psn={psn},mtu={},rd={rd_atomic},gid={gid}", mtu.bytes())?;
        if lid.raw() == 0 { Ok(()) } else { write!(f, ",lid={}", lid.raw()) }
    }
}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let mut fields = line.trim().split(',');
        let service = match fields.next() {
            Some("rc") => QpType::Rc,
            Some("uc") => QpType::Uc,
            Some("ud") => QpType::Ud,
            Some("xrc-ini") => QpType::XrcIni,
            Some("xrc-tgt") => QpType::XrcTgt,
            Some("eec") => QpType::Eec,
            _ => return Err(ParseEndpointError { what: "service" }),
        };
        let mut field = |what: &'static str| {
            let value = fields.next().and_then(|f| f.strip_prefix(what)?.strip_prefix('='));
            value.ok_or(ParseEndpointError { what })
        };
        let hex24 = |what, text: &str| {
            let digits = text.strip_prefix("0x").filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
            let raw = digits.and_then(|t| u32::from_str_radix(t, 16).ok());
            raw.filter(|&raw| raw < 1 << 24).ok_or(ParseEndpointError { what })
        };
        let qpn = Qpn::new(hex24("qpn", field("qpn")?)?);
        let psn = Psn::new(hex24("psn", field("psn")?)?);
        // A number may begin with a sign for Rust, and not here.
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let mtu =
            Some(field("mtu")?).filter(|t| digits(t)).and_then(|t| t.parse().ok()).and_then(Mtu::from_bytes);
        let mtu = mtu.ok_or(ParseEndpointError { what: "mtu" })?;
        let rd_atomic = Some(field("rd")?).filter(|t| digits(t)).and_then(|t| t.parse().ok());
        let rd_atomic = rd_atomic.ok_or(ParseEndpointError { what: "rd" })?;
        let gid: std::net::Ipv6Addr =
            field("gid")?.parse().map_err(|_| ParseEndpointError { what: "gid" })?;
        let lid = match fields.next() {
            None => Lid::default(),
            Some(last) => {
                let what = if last.starts_with("lid=") { "lid" } else { "the end of the line" };
                let lid = last.strip_prefix("lid=").filter(|t| digits(t)).and_then(|t| t.parse().ok());
                // One that is 0 is left out.
                Lid::new(lid.filter(|lid| *lid != 0).ok_or(ParseEndpointError { what })?)
            }
        };
        if fields.next().is_some() {
            return Err(ParseEndpointError { what: "the end of the line" });
        }
        Self { service, qpn, psn, mtu, rd_atomic, gid: Gid(gid.octets()), lid }.checked()
    }
}

/// A line of a stream that is an endpoint, as far as it was read.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    /// Bytes of the longest endpoint, with some to spare.
    const MAX: usize = 160;

    /// Takes a byte; the endpoint, where it ends the line.
    fn push(&mut self, byte: u8) -> Option<Result<Endpoint, ExchangeError>> {
        if byte == b'\n' {
            let line = String::from_utf8_lossy(&self.0);
            return Some(line.parse().map_err(ExchangeError::from));
        }
        if self.0.len() == Self::MAX {
            return Some(Err(ParseEndpointError { what: "the end of the line" }.into()));
        }
        self.0.push(byte);
        None
    }
}

/// The default timeout for an acknowledgement: 4.096 us * 2^19.
const DEFAULT_TIMEOUT: AckTimeout = AckTimeout::new(19);
/// How often it then tries again: as often as the field counts.
const DEFAULT_RETRY_CNT: u8 = 7;

/// The settings of a connection. The defaults suit most programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Path MTU, at most the smaller `active_mtu` of both ports, which is the default.
    pub mtu: Option<Mtu>,
    /// The first PSN that this side sends; that of its endpoint unless given. RDMA CM lets the peer choose it.
    pub psn: Option<Psn>,
    /// The timeout for an acknowledgement (RC); 2.1 s unless given.
    ///
    /// With seven retries a request fails after 17 s at the earliest. A process may stand still for long without being
    /// dead: a used-up CPU quota stops a container again and again, a busy machine runs other processes first, a
    /// debugger stops its program. Both ends have to rebuild a failed connection, so the default outlasts such stops.
    /// For longer debugging sessions `AckTimeout::new(0)` waits for ever.
    ///
    /// The timeout is not for lost packets: the adapter in software sends a probe after about one measured round trip,
    /// far earlier. An adapter in silicon has no other timer for a lost last packet; where its network loses packets,
    /// 14 (67 ms) or so recovers sooner, and gives up sooner. A peer that dies on this machine is noticed at once over
    /// shared memory.
    pub timeout: AckTimeout,
    /// The number of retries after a timeout, 0 to 7 (RC); 7 unless given.
    pub retry_cnt: u8,
    /// The number of retries while the peer has no receive request, 0 to 7 (RC). 7 retries for ever, and is the
    /// default: a peer may be slow in posting receives.
    pub rnr_retry: u8,
    /// The time that a peer is told to wait when this side has no receive request (RC); 0.64 ms unless given.
    pub min_rnr_timer: RnrTimer,
    /// The most outstanding READs and atomics of this side (RC); at most as many as both sides allow, which is the
    /// default.
    pub rd_atomic: Option<u8>,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Hop limit (TTL); 0 takes the device's default.
    pub hop_limit: u8,
    /// Flow label, 20 bits; on RoCEv2 entropy for the UDP source port. 0 lets the device choose.
    pub flow_label: u32,
    /// Service level, 0 to 15; on Ethernet a priority, 0 to 7.
    pub sl: u8,
    /// The highest rate of sending, for a path that is slower than the port.
    pub static_rate: StaticRate,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            mtu: None,
            psn: None,
            timeout: DEFAULT_TIMEOUT,
            retry_cnt: DEFAULT_RETRY_CNT,
            rnr_retry: RNR_RETRY_INFINITE,
            min_rnr_timer: RnrTimer::default(),
            rd_atomic: None,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            sl: 0,
            static_rate: StaticRate::UNLIMITED,
        }
    }
}

/// What takes a queue pair in INIT to RTR, and then to RTS.
pub(crate) fn steps(
    ours: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<(QpAttr, QpAttr), ConnectError> {
    let reliable = ours.service.is_reliable();
    let (sends, serves_peer) =
        (reliable && ours.service != QpType::XrcTgt, reliable && ours.service != QpType::XrcIni);
    if remote.service != ours.service.peer() {
        return Err(ConnectError::Service { ours: ours.service, theirs: remote.service });
    }
    let mtu = ours.mtu.min(remote.mtu);
    let serves = ours.rd_atomic.min(remote.rd_atomic);
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        dest_qpn: Some(remote.qpn),
        av: Some(AddressVector {
            // Within a subnet a global header would be 40 bytes of each packet for nothing.
            dgid: if ours.is_near(remote) { Gid::default() } else { remote.gid },
            dlid: remote.lid,
            flow_label: options.flow_label,
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
            sl: options.sl,
            static_rate: options.static_rate,
        }),
        path_mtu: Some(options.mtu.map_or(mtu, |wanted| wanted.min(mtu))),
        rq_psn: Some(remote.psn),
        max_dest_rd_atomic: serves_peer.then_some(ours.rd_atomic),
        min_rnr_timer: serves_peer.then_some(options.min_rnr_timer),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        state: Some(QpState::Rts),
        sq_psn: Some(options.psn.unwrap_or(ours.psn)),
        max_rd_atomic: sends.then(|| options.rd_atomic.map_or(serves, |wanted| wanted.min(serves))),
        timeout: reliable.then_some(options.timeout),
        retry_cnt: sends.then_some(options.retry_cnt),
        rnr_retry: sends.then_some(options.rnr_retry),
        ..QpAttr::default()
    };
    // A refusal of the second step is found before the first step, which can't be undone.
    rts.check(ours.service, QpState::Rtr).map_err(DeviceError::from)?;
    Ok((rtr, rts))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LINE: &str = "uc,qpn=0x000012,psn=0xffffff,mtu=4096,rd=0,gid=fe80::1";

    /// A CPU quota of one part in a hundred stands still for a second at most; a look at a breakpoint takes longer.
    #[test]
    fn the_default_outlasts_a_process_that_stands_still_for_ten_seconds() {
        let ConnectOptions { timeout, retry_cnt, .. } = ConnectOptions::default();
        let patience = timeout.duration().unwrap() * (u32::from(retry_cnt) + 1);
        assert!((10..=30).contains(&patience.as_secs()), "{patience:?}");
    }

    #[test]
    fn an_endpoint_is_one_line_of_text() {
        let endpoint: Endpoint = LINE.parse().unwrap();
        assert_eq!(endpoint.service, QpType::Uc);
        assert_eq!(endpoint.psn, Psn::new(0xff_ffff));
        assert_eq!(endpoint.to_string(), LINE);
        assert_eq!(format!("{LINE}\n").parse(), Ok(endpoint));
    }

    #[test]
    fn a_malformed_line_names_the_field() {
        for (from, to, what) in [
            ("uc", "rd", "service"),
            ("0x000012", "0x1000000", "qpn"),
            ("psn=", "spn=", "psn"),
            ("4096", "4097", "mtu"),
            ("rd=0", "rd=256", "rd"),
            ("fe80::1", "fe80", "gid"),
            ("fe80::1", "fe80::1,x", "the end of the line"),
            ("fe80::1", "fe80::1,lid=7,x", "the end of the line"),
            ("fe80::1", "fe80::1,lid=0", "lid"),
            ("fe80::1", "fe80::1,lid=49152", "lid"),
            ("fe80::1", "fe80::1,lid=+7", "lid"),
            ("0x000012", "0x+00012", "qpn"),
            ("0x000012", "0x000001", "qpn"),
            ("0x000012", "0xffffff", "qpn"),
            ("psn=0x", "psn=0x+", "psn"),
            ("4096", "+4096", "mtu"),
            ("rd=0", "rd=+1", "rd"),
            ("fe80::1", "ff02::1", "gid"),
            ("fe80::1", "::ffff:224.0.0.1", "gid"),
        ] {
            let error = LINE.replacen(from, to, 1).parse::<Endpoint>().unwrap_err();
            assert_eq!(error.what, what);
        }
        assert!("".parse::<Endpoint>().is_err());
    }

    #[test]
    fn the_lid_of_an_infiniband_port_ends_the_line_and_is_enough_within_a_subnet() {
        let end = |text: &str| -> Endpoint { format!("{LINE}{text}").parse().unwrap() };
        let (ours, theirs) = (end(",lid=7"), end(",lid=49151"));
        assert_eq!((ours.lid, ours.to_string()), (Lid::new(7), format!("{LINE},lid=7")));
        assert_eq!((ours.av().dgid, ours.av().dlid), (ours.gid, ours.lid));
        let path = |ours: &Endpoint, theirs: &Endpoint| {
            let av = steps(ours, theirs, &ConnectOptions::default()).unwrap().0.av.unwrap();
            (av.dgid, av.dlid.raw())
        };
        assert_eq!(path(&ours, &theirs), (Gid::default(), 49151));
        let far = Endpoint { gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]), ..theirs };
        assert_eq!(path(&ours, &far), (far.gid, 49151), "another subnet's");
        assert_eq!(path(&ours, &end("")), (ours.gid, 0), "a port that is found by its GID");
        assert_eq!(path(&end(""), &end("")), (ours.gid, 0));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn an_endpoint_that_can_not_be_is_refused_by_serde_too() {
        let json = serde_json::to_string(&format!("{LINE},lid=7").parse::<Endpoint>().unwrap()).unwrap();
        for (from, to, what) in [
            ("\"lid\":7", "\"lid\":49152", "lid"),
            ("\"lid\":7", "\"lid\":65535", "lid"),
            ("\"qpn\":18", "\"qpn\":1", "qpn"),
            ("fe80::1", "ff02::1", "gid"),
        ] {
            assert!(json.contains(from), "{json}");
            let e = serde_json::from_str::<Endpoint>(&json.replacen(from, to, 1)).unwrap_err();
            assert!(e.to_string().contains(what), "{to}: {e}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn an_endpoint_survives_serde_and_says_nothing_of_a_lid_that_is_none() {
        for lid in [0, 7] {
            let endpoint = Endpoint { lid: Lid::new(lid), ..LINE.parse().unwrap() };
            let json = serde_json::to_string(&endpoint).unwrap();
            assert_eq!(json.contains("lid"), lid != 0, "{json}");
            assert_eq!(serde_json::from_str::<Endpoint>(&json).unwrap(), endpoint);
        }
    }
}
