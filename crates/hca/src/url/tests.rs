use super::*;

fn parse(s: &str) -> DeviceUrl {
    s.parse().unwrap_or_else(|e| panic!("{s}: {e}"))
}
fn refusal(s: &str) -> String {
    s.parse::<DeviceUrl>().unwrap_err().to_string()
}

#[test]
fn every_scheme_is_read() {
    assert_eq!(parse("auto://").target, Target::Auto(None));
    assert_eq!(parse("auto://[fd00::2]").target, Target::Auto("fd00::2".parse().ok()));
    assert_eq!(parse("udp://127.0.0.2").target, Target::Udp(Some([127, 0, 0, 2].into())));
    assert_eq!(parse("udp://[::1]").target, Target::Udp("::1".parse().ok()));
    assert_eq!(parse("udp://::1").target, Target::Udp("::1".parse().ok()));
    let link_local = parse("udp://fe80::2%eth0");
    assert_eq!(link_local.target, Target::Udp("fe80::2".parse().ok()));
    assert_eq!(link_local.options.interface.as_deref(), Some("eth0"));
    assert_eq!(parse("uring://10.0.0.1").target, Target::Uring(Some([10, 0, 0, 1].into())));
    assert_eq!(parse("udp://").target, Target::Udp(None));
    assert_eq!(parse("shm://lab").target, Target::Shm("lab".into()));
    let raw = |options| Target::Raw { interface: "eth0".into(), options };
    assert_eq!(parse("raw://eth0").target, raw(RawOptions::default()));
    let ip = Some([10, 0, 0, 2].into());
    let tagged = RawOptions { ip, version: RoceVersion::V1, vlan: Some(7), slots: 0 };
    assert_eq!(parse("raw://eth0?vlan=7&ip=10.0.0.2&mtu=1024&roce=1").target, raw(tagged));
    assert_eq!(parse("loopback://a%20b").target, Target::Loopback("a b".into()));
}

#[test]
fn an_interface_or_a_prefix_stands_for_the_address_there() {
    let url = parse("auto://eth0");
    assert_eq!((url.target, url.options.interface.as_deref()), (Target::Auto(None), Some("eth0")));
    let url = parse("udp://10.1.0.0/16?share=yes");
    assert_eq!((url.target, url.options.prefix), (Target::Udp(None), "10.1.0.0/16".parse().ok()));
    assert_eq!(parse("uring://fd00::/64").options.prefix, "fd00::/64".parse().ok());
}

#[test]
fn options_are_read() {
    let o =
        parse("udp://127.0.0.2?progress=inline&fault=loss=0.01,seed=7&mtu=1024&capture=/tmp/a%26b").options;
    assert_eq!(o.progress, Some(Progress::Inline));
    let plan = o.fault.unwrap().plan();
    assert_eq!((plan.tx.loss, plan.rx.loss, plan.seed), (0.01, 0.01, 7));
    assert_eq!(o.mtu, Some(Mtu::B1024));
    assert_eq!(o.capture, Some("/tmp/a&b".into()));
}

/// Names with every scheme and every option, as they are printed.
const PRINTED: &[&str] = &[
    "auto://",
    "auto://?progress=thread",
    "auto://10.0.0.2?ring=131072&isolated=yes&process_vm=no",
    "udp://",
    "udp://[fd00::2]?mtu=256",
    "udp://[fe80::2%eth0.7]?mtu=256",
    "auto://10.0.0.2?share=yes",
    "auto://eth0?share=yes",
    "udp://eth0.7",
    "uring://10.1.0.0/16",
    "auto://[fd00::]/64?mtu=1024",
    "udp://10.0.0.2?share=yes",
    "uring://10.0.0.2?share=no",
    "uring://10.0.0.2?share=250",
    "raw://eth0?ip=10.0.0.2&share=yes",
    "auto://[fe80::2]",
    "uring://[fe80::2%wire]",
    "uring://127.0.0.9?progress=adaptive&fault=loss=0.25,delay=0.1:20us,seed=3",
    "shm://lab",
    "shm://lab?progress=inline&acks=lazy&dir=/run/a%20b&users=any&ring=65536&isolated=yes",
    "shm://lab?acks=eager&process_vm=any",
    "shm://lab?process_vm=yes",
    "raw://eth0.7",
    "raw://wire?ip=fd77::1&roce=1&vlan=4094&progress=inline&mtu=512",
    "loopback://a%26b%25?capture=x%20y.pcapng",
    "vfio://0000:03:00.0",
    "vfio://0000:03:00.1?ip=10.0.0.2,fd00::2&neigh=10.0.0.3=02:00:00:00:00:03,fd00::3=0a:0b:0c:0d:0e:0f",
    "vfio-user:///run/a%20b.sock?lid=fe80::5=7",
    "vfio://0000:03:00.0?ip=10.0.0.2&mtu=1024&raise=no",
    "vfio-user:///run/a.sock?raise=yes&wait=3600",
];

#[test]
fn what_is_printed_parses_to_the_same() {
    for &s in PRINTED {
        let url = parse(s);
        assert_eq!(url.to_string(), s);
        assert_eq!(parse(&url.to_string()), url);
    }
}

#[test]
fn the_refusal_of_an_unknown_option_names_every_option() {
    let said = refusal("auto://?speed=9");
    for option in
        PRINTED.iter().filter_map(|url| url.split_once('?')).flat_map(|(_, options)| options.split('&'))
    {
        let name = option.split('=').next().expect("a split has a first part");
        assert!(said.contains(&format!("{name}=")), "{name}: {said}");
    }
}

#[test]
fn refusals_name_the_value_and_the_remedy() {
    for (url, parts) in [
        ("127.0.0.1", ["127.0.0.1", "auto://"]),
        ("tcp://127.0.0.1", ["`tcp`", "auto://ADDRESS"]),
        ("udp://10.0.0", ["10.0.0", "udp://127.0.0.2"]),
        ("auto://10.0.0.0/33", ["10.0.0.0/33", "auto://10.1.0.0/16"]),
        ("auto://a lab", ["a lab", "auto://127.0.0.2"]),
        ("auto://eth0%eth1", ["eth0%eth1", "auto://eth0"]),
        ("udp://[fd00::2%eth0]", ["link-local", "udp://[fe80::1%eth0]"]),
        ("udp://127.0.0.2%lo", ["link-local", "udp://[fe80::1%eth0]"]),
        ("shm://lab?share=yes", ["share=", "auto://ADDRESS"]),
        ("udp://127.0.0.2?share=251", ["share", "1 to 250"]),
        ("udp://[fe80::2%]", ["interface", "udp://[fe80::1%eth0]"]),
        ("auto://?users=any", ["users=", "shm://DOMAIN"]),
        ("raw://", ["needs an interface", "raw://eth0"]),
        ("raw://eth0?ip=eth0", ["`eth0`", "ip=10.0.0.2"]),
        ("raw://eth0?roce=3", ["`3`", "1 or 2"]),
        ("raw://eth0?vlan=4095", ["`4095`", "4094"]),
        ("raw://eth0?vlan=1&vlan=1", ["vlan", "twice"]),
        ("udp://?vlan=1", ["`vlan`", "raw://"]),
        ("loopback://", ["needs a name", "loopback://lab"]),
        ("shm://", ["needs a domain", "shm://lab"]),
        ("shm://lab?users=root", ["root", "any"]),
        ("shm://lab?ring=100000", ["100000", "power of two"]),
        ("shm://lab?dir=", ["dir", "/run/lab"]),
        ("shm://lab?process_vm=maybe", ["maybe", "any"]),
        ("udp://?dir=/run/lab", ["udp://", "shm://DOMAIN"]),
        ("udp://?ring=64K", ["ring=", "auto://ADDRESS"]),
        ("vfio://0000:03:00.0?share=yes", ["share=", "software adapter"]),
        ("vfio://", ["needs a PCI function", "lspci"]),
        ("vfio-user://", ["needs a socket", "hca serve"]),
        ("vfio://0000:03:00.0?ip=10.0.0", ["`10.0.0`", "ip=10.0.0.2"]),
        ("vfio://0000:03:00.0?neigh=10.0.0.3", ["`10.0.0.3`", "02:00:00:00:00:03"]),
        ("vfio://0000:03:00.0?neigh=10.0.0.3=2:0:0:0:0:3", ["neigh", "02:00:00:00:00:03"]),
        ("vfio://0000:03:00.0?lid=fe80::5=49152", ["lid", "49151"]),
        ("vfio://0000:03:00.0?ip=10.0.0.2&ip=10.0.0.3", ["ip", "twice"]),
        ("vfio://0000:03:00.0?mtu=1500", ["`1500`", "4096"]),
        ("vfio://0000:03:00.0?mtu=1024&mtu=512", ["mtu", "twice"]),
        ("vfio://0000:03:00.0?raise=1", ["`1`", "raise"]),
        ("udp://?raise=no", ["`raise`", "vfio://"]),
        ("vfio://0000:03:00.0?wait=3601", ["`3601`", "wait=30"]),
        ("vfio://0000:03:00.0?wait=1&wait=2", ["wait", "twice"]),
        ("vfio-user:///run/a.sock?progress=inline", ["progress=", "software adapter"]),
        ("udp://?neigh=10.0.0.3=02:00:00:00:00:03", ["`neigh`", "vfio://"]),
        ("auto://?speed=9", ["`speed`", "progress="]),
        ("auto://?mtu=1500", ["1500", "4096"]),
        ("auto://?mtu=256&mtu=512", ["mtu", "twice"]),
        ("auto://?progress=fast", ["fast", "adaptive"]),
        ("auto://?acks=late", ["`late`", "eager or lazy"]),
        ("auto://?fault=loss=2", ["`2`", "from 0 to 1"]),
        ("auto://?fault=lost=0.1", ["`lost`", "dup"]),
        ("auto://?capture=", ["capture", "run.pcapng"]),
        ("auto://?capture=a%2", ["a%2", "%25"]),
    ] {
        let text = refusal(url);
        for part in parts {
            assert!(text.contains(part), "{url}: {text:?} lacks {part:?}");
        }
    }
}
