//! What `--help` says below the options.
//!
//! A paragraph is one line here, which is wrapped where it is shown. What stands in columns is broken by hand, and has
//! at most 80 characters a line: a terminal of 80 columns or more shows it as it is.

pub(super) const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

pub(super) const DEVICES: &str = "\
Devices:
  auto://ADDRESS      as udp://, and shared memory by itself where the peer of a
                      reliable connection is an auto:// device of this user on
                      this machine (default, but for perf: udp://)
  udp://ADDRESS       RoCEv2 over UDP sockets, bound to ADDRESS, port 4791
  uring://ADDRESS     the same through io_uring, or plain sockets (with a note)
                      where the kernel has none; without ADDRESS a free loopback
                      one is taken
  shm://DOMAIN        shared memory between the processes of this machine that
                      name the DOMAIN
  raw://INTERFACE     Ethernet frames on an interface (needs CAP_NET_RAW), with
                      ?ip=ADDRESS&roce=1|2&vlan=ID
  loopback://NAME     inside one process
  vfio://FUNCTION     a ConnectX adapter bound to vfio-pci, as
                      vfio://0000:03:00.0, with ?ip=ADDRESS
  vfio-user://SOCKET  one that a server offers at a socket, as `hca serve` does

Options of a device, as ?option=value, joined by &:
  progress=inline|thread|adaptive
                      who does the adapter's work
  acks=eager|lazy     progress=inline: whether a message that was polled is
                      acknowledged at once, or with the answer or next call
  mtu=BYTES           a network with a smaller path MTU
  capture=FILE.pcapng
                      every frame is written to a file that Wireshark opens
  fault=loss=P,dup=P,reorder=P,corrupt=P,delay=P:MIN-MAX,seed=N
                      faults of the network: P from 0 to 1; tx.loss, rx.loss for
                      one direction; delays as 10us or 2ms
  dir=FOLDER          shm://: sockets there, for containers that share it
  users=own|any       shm://: whose processes are peers
  ring=BYTES          shm://, auto://: 64K to 64M, to each peer
  isolated=yes|no     shm://, auto://: no memory but the rings is shared
  process_vm=yes|no|any
                      shm://, auto://: whether long messages out of the
                      program's own memory are fetched from its process; any:
                      also where Yama asks

The environment variable HCA_DEVICE takes the place of a device that is not given.";

pub(super) const EXAMPLES: &str = "\
Examples:
  hca devinfo                   limits and counters of the default device
  hca perf                      latency, bandwidth and rate of two processes
  hca perf --op send --size 8,4K --plot a.svg
                                two rows, and a drawing
  hca perf --listen 10.0.0.1    on one host, and on another:
  hca perf --connect 10.0.0.1
  hca perf --layer portals      the same of Portals
  hca portals trace             why a message does not match
  hca pingpong rc --server      against ibv_rc_pingpong on another host
  hca run -n 4 ./program        four processes that know each other
  hca serve --pci /tmp/a.sock   the adapter as a PCI function, for a
                                virtual machine";

pub(super) const PERF_EXAMPLES: &str = "\
Examples:
  hca perf
  hca perf --op write --size 64K,1M --duration 3
  hca perf --service ud --op send --json
  hca perf --fault loss=0.01,seed=7 --capture lossy.pcapng
  hca perf --layer portals --fabric shm
  hca perf --layer portals --depth 0,1000,100000
                                      what entries before the right one cost
  hca perf --layer portals --op put --eager 1K,4K,16K --size 512,2K,8K,32K
  hca perf --layer portals --offload off --op put-ack
  hca perf --device raw://v0 --peer-netns far --peer-device raw://v1
  hca perf --listen 10.0.0.1          (first host)
  hca perf --connect 10.0.0.1         (second host)

Latency is one way (half of a round trip) for send and write, and from post to completion for read and atomic. With \
--layer portals it is one way for put (half of a round trip, each side told by an event), and from the call to the event \
for put-ack, get and atomic (fetch-add of as many words as the size has). Streams of short puts are acknowledged every \
64th, and the target takes the event of each.

gb_per_s is 10^9 bytes of payload a second. A write of more than 8 bytes is timed with an 8-byte flag written behind it, \
since the order inside one long write is not promised.

Fields of --json, one object a row, only ever added to:
  fabric service op layer size p50_ns p99_ns p999_ns mean_ns max_ns gb_per_s
  msgs_per_s count errors progress placement cpu peer_cpu offload eager_bytes
  depth entries

The last four are null but for --layer portals, and depth and entries but for --depth. placement says how the CPUs of \
both processes stood: near, far, mixed (it changed), unknown. Compare only rows of one placement.

--listen serves one host after the other, and gives up on one that is silent, in the middle of a measurement too.";

pub(super) const TRACE_EXAMPLES: &str = "\
Examples:
  hca portals trace                             all scenarios that come with
                                                the command
  hca portals trace --scenario unexpected
  hca portals trace my-lists.txt                one's own
  hca portals trace --json - < my-lists.txt

A scenario is a text, a statement a line; # begins a comment:
  portal 4                                      flow-control, only-use-once,
                                                only-truncate, events=COUNT
  post inbox portal=4 bits=0x10 ignore=0xf      list=priority|overflow, uid=,
                                                from=any|SENDER|NODE:PROCESS
                                                (* is any), length=64,
                                                min-free=, options=put,get,
                                                use-once,manage-local,may-align,
                                                no-truncate,no-header
  put portal=4 bits=0x17 length=8               also get, fetch-add; offset=,
                                                by=SENDER
  put portal=4 bits=0x99 expect=dropped         or ok, disabled, permission,
                                                operation
  sender b uid=1000                             another process; the first one
                                                is called a
  unlink inbox
  disable 4
  enable 4

Fields of --json, one object a line of the scenario, only ever added to:
  scenario line statement
  compared (entry list bits ignore from takes why)
  outcome (fail entry mlength offset text wanted expected)
  events (event entry mlength text)

All of it happens in this process. In the table, - is an entry that was asked and did not take the message, = the one that \
did; > is what its sender hears, ! an event at the target.";

pub(super) const TRACE_EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failed, 2 wrong usage or a scenario that is none, 3 a message ended otherwise than its line \
expects, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

pub(super) const PINGPONG_EXAMPLES: &str = "\
Examples:
  hca pingpong rc --server                  says where it waits, as
                                            127.0.0.2:18515; then, beside it:
  hca pingpong rc 127.0.0.2

  hca pingpong rc --server --device udp://10.0.0.1
                                            then, on another host:
  ibv_rc_pingpong -g 1 10.0.0.1             (the index of a RoCEv2 GID)

  hca pingpong ud 10.0.0.2 --device udp://10.0.0.1 --size 1024
                                            against ibv_ud_pingpong -g 1 -s 1024

The end that waits does so on its device's own address, and says which on standard error. Both ends need the same size and \
iters.";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  hca run -n 4 ./program --its-option
  hca run -n 2 --device shm://lab --prefix ./program
  hca run -n 8 --timeout 60 --env RUST_LOG=debug -- ./program

Each process finds the others by PMI-1 (PMI_FD, PMI_RANK, PMI_SIZE), as under mpiexec. Rank 0 reads this command's \
standard input where that is no terminal; the others have none. Name a device that each can open: auto://, udp://, \
shm://lab; an address serves one only.

When one process fails, all others are told to end (TERM), and killed after --grace; so all are at Ctrl-C. When this \
command is killed, they end, too.

Output comes line by line. Its reader may take any time until this command is told to end, and has --grace then.";

pub(super) const RUN_EXIT_CODES: &str = "\
Exit codes: 0 all processes succeeded; that of the first that failed, 128 and its number if a signal ended it; 124 after \
--timeout, 127 if the program can't be started, 1 failed otherwise, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by \
HUP.";

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  hca serve --pci /tmp/a.sock --pci /tmp/b.sock
                                  two functions, which reach each other
  hca serve --pci /tmp/a.sock --device udp://10.0.0.1
                                  one that reaches other hosts, too
  hca serve --pci /tmp/a.sock --port roce
                                  with an Ethernet port, for RoCE
  hca serve --port roce --pci /tmp/a.sock,mac=02:00:00:00:00:01,ip=10.0.0.1
                                  whose driver can have no other addresses
  hca serve --pci /tmp/a.sock,rate=2.5G
                                  one that sends 2.5 Gbit/s at most

A line for each function says when clients may come. A client is another driver that speaks vfio-user, or QEMU 10.1 or \
later, with its memory in a memory-backend-memfd with share=on, and
  -device '{\"driver\":\"vfio-user-pci\",\"rombar\":0,
            \"socket\":{\"type\":\"unix\",\"path\":\"/tmp/a.sock\"}}'

Each socket has one client at a time; when it goes, the next one finds the function as new. All functions share the adapter \
and its address. Without a device they reach each other only (loopback://). Ctrl-C ends it.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::{Cli, run};

    const WIDTHS: [usize; 2] = [80, 100];

    /// The long help of each command that is shown, as a terminal of this width shows it.
    fn all(width: usize) -> Vec<(String, String)> {
        fn of(mut command: clap::Command, width: usize, all: &mut Vec<(String, String)>) {
            command = command.term_width(width);
            let subcommands: Vec<_> =
                command.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect();
            all.push((command.get_name().to_owned(), command.render_long_help().to_string()));
            subcommands.into_iter().for_each(|c| of(c, width, all));
        }
        let mut found = Vec::new();
        of(Cli::command(), width, &mut found);
        assert!(found.len() >= 7, "{found:?}");
        assert!(!found.iter().any(|(name, _)| name == run::guard::COMMAND));
        found
    }

    #[test]
    fn no_line_of_any_help_is_wider_than_its_terminal() {
        for width in WIDTHS {
            for (name, help) in all(width) {
                for line in help.lines() {
                    assert!(line.chars().count() <= width, "{name}, {width} columns: {line}");
                }
            }
        }
    }

    #[test]
    fn what_is_wrapped_is_a_paragraph_of_its_own_so_no_line_is_torn() {
        // So wide that nothing is wrapped: the lines as they are written.
        for (name, help) in all(10_000) {
            let lines: Vec<&str> = help.lines().collect();
            let indent = |line: &str| line.len() - line.trim_start().len();
            // Options come before, which are clap's to wrap.
            let texts = lines.iter().position(|l| l.starts_with("Examples:") || l.starts_with("Devices:"));
            for at in texts.unwrap_or(lines.len())..lines.len() {
                let long = lines[at].chars().count() > WIDTHS[0];
                let before = lines[at - 1];
                let behind = lines.get(at + 1).copied().unwrap_or_default();
                let alone = before.is_empty() && (behind.is_empty() || indent(behind) > 0);
                assert!(
                    !long || alone && indent(lines[at]) == 0,
                    "{name}: torn at 80 columns: {}",
                    lines[at]
                );
            }
        }
    }

    #[test]
    fn every_help_names_all_exit_codes_of_signals() {
        for (name, help) in all(100).into_iter().filter(|(name, _)| !["portals"].contains(&name.as_str())) {
            let said = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains("130 ended by Ctrl-C, 143 by TERM, 129 by HUP"), "{name}: {said}");
        }
    }
}
