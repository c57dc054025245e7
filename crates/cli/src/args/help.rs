//! The text of `--help` below the options.
//!
//! A paragraph is one line here, which is wrapped where it is shown. Text in columns is wrapped by hand at 80
//! characters a line.

pub(super) const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

pub(super) const SHOWN_EXIT_CODES: &str = "\
Exit codes: 0 something was shown, 3 there is nothing to show, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, \
129 by HUP.";

pub(super) const NAMES: &str = "`hca help devices` explains the names of devices and their options.";

pub(super) const DEVINFO_EXAMPLES: &str = "\
Examples:
  hca devinfo                       the default device, auto://
  hca devinfo --device udp://10.0.0.1 --json
  hca devinfo --fabric shm --progress thread";

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  hca list
  hca list --json | jq '.[] | select(.opens)'

Each device is opened and closed, except adapters behind vfio, which opening would reset.";

pub(super) const DEVICES_EXAMPLES: &str = "\
Examples:
  hca devices
  HCA_DEVICES='rxe0=udp://10.0.0.1?share=yes rxe1=auto://lo' hca devices --json

The columns are those of ibv_devices, and the device behind each name. Nothing is opened.";

pub(super) const PING_EXAMPLES: &str = "\
Examples:
  hca ping --listen 10.0.0.1        on the other host, then here:
  hca ping 10.0.0.1
  hca ping 10.0.0.1 --device udp://10.0.0.2 --json

A round trip is two messages of 8 bytes on a reliable connection. The other host has to listen: a packet reaches a queue \
pair by its number, which both ends tell each other over TCP, so an adapter alone has nothing to answer with. \
Queue pair 1 has a number that is known, but it is the program's that serves RDMA CM: an adapter that answered there by \
itself would have to look for a path to each stranger that asks.";

pub(super) const LOGP_EXAMPLES: &str = "\
Examples:
  hca logp                          all layers over UDP
  hca logp --fabric shm --layer verbs,am,am-via --json
  hca logp --capture run.pcapng     a file for each: run-verbs.pcapng, ...

By bursts of requests of 8 bytes with a delay behind each, which another process answers (Culler, Liu, Martin and \
Yoshikawa, 1996). o_send and o_recv are the processor's times for a message, g is the time between two messages of a \
long burst, L = RTT/2 - o_send - o_recv is the rest of the way, G the time of a byte in bulk.

L is below zero where the two ends overlap: the bursts keep a message's lines in the caches, and what a receiver does \
for several messages at once costs each less than it costs one.";

pub(super) const STAT_EXAMPLES: &str = "\
Examples:
  hca stat                          sums since each device was opened
  hca stat --watch                  figures of a second; Ctrl-C ends
  hca stat --pid 4711 --json

tx counts the requests of this side, rx those that it served. Requests that a peer on this machine carries out on this \
side's memory are counted by that peer alone. MB are 10^6 bytes of payload in both directions, RESENT the packets that \
were retransmitted since the device was opened. A narrow terminal has requests of all operations in one column, and \
--json all counters.

A process shows its adapters to its own user, at an abstract UNIX socket, in its network namespace. \
HCA_STAT=off in its environment leaves the socket out.";

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  hca completions bash > ~/.local/share/bash-completion/completions/hca
  hca completions fish > ~/.config/fish/completions/hca.fish";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  hca man ~/.local/share/man/man1   then: man hca-perf";

pub(super) const DEVICES: &str = "\
A command takes the device of --device, else the network of --fabric, else the device that the environment variable \
HCA_DEVICE names, else auto://.

Two commands have another default. hca perf: udp://, so that its figures are of the network and compare from run to \
run. hca serve: loopback://, so that its functions reach each other only.

Devices:
  auto://ADDRESS      as udp://; shared memory if the peer of a reliable
                      connection is an auto:// device of this user on this
                      machine
  udp://ADDRESS       RoCEv2 over UDP sockets, bound to ADDRESS, port 4791
  uring://ADDRESS     the same through io_uring, or plain sockets (with a note)
                      where the kernel has none; without ADDRESS a free loopback
                      one is taken
                      ADDRESS may be an interface, as auto://eth0, or a prefix,
                      as auto://10.1.0.0/16, with one address of this host
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
                      progress mode: who runs the adapter
  acks=eager|lazy     progress=inline: acknowledge a polled message at once, or
                      with the answer or the next call
  mtu=BYTES           a network with a smaller path MTU
  capture=FILE.pcapng
                      every frame is written to a file that Wireshark opens
  fault=loss=P,dup=P,reorder=P,corrupt=P,delay=P:MIN-MAX,seed=N
                      faults of the network: P from 0 to 1; tx.loss, rx.loss for
                      one direction; delays as 10us or 2ms
  share=yes|no|NUMBER auto://, udp://, uring://, raw://: processes of this user
                      open the same address, 64 by default, up to 250
  dir=FOLDER          shm://: sockets there, for containers that share it
  users=own|any       shm://: the users whose processes are peers
  ring=BYTES          shm://, auto://: 64K to 64M, to each peer
  isolated=yes|no     shm://, auto://: no memory but the rings is shared
  process_vm=yes|no|any
                      shm://, auto://: whether peers fetch long messages in
                      the program's own memory from its process, and write
                      to that memory; any: also where Yama restricts that";

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
  hca list                      devices that can be opened here
  hca ping 10.0.0.1             whether it is reached, and by which way
  hca stat --watch              live counters of running adapters
  hca pingpong rc --listen      against ibv_rc_pingpong on another host
  hca run -n 4 ./program        four processes of one job
  hca serve --pci /tmp/a.sock   the adapter as a PCI function, for a
                                virtual machine";

pub(super) const PERF_EXAMPLES: &str = "\
Examples:
  hca perf --op write --size 64K,1M --duration 3
  hca perf --layer portals --depth 0,1000,100000
  hca perf --listen 10.0.0.1          (first host)
  hca perf --connect 10.0.0.1         (second host)";

pub(super) const PERF_TOPICS: &str = "`hca help perf-figures`: what is measured, the fields of --json, more examples. \
`hca help devices`: names of devices and their options.";

pub(super) const PERF_FIGURES: &str = "\
Examples:
  hca perf
  hca perf --service ud --op send --json
  hca perf --fault loss=0.01,seed=7 --capture lossy.pcapng
  hca perf --layer portals --fabric shm
  hca perf --layer portals --depth 0,1000,100000
                                      the cost of entries before the right one
  hca perf --layer portals --op put --eager 1K,4K,16K --size 512,2K,8K,32K
                                      several values of --eager: several rows
  hca perf --layer portals --offload off --op put-ack
  hca perf --device raw://v0 --peer-netns far --peer-device raw://v1

Latency is one way (half of a round trip) for send and write, and from post to completion for read and atomic. With \
--layer portals it is one way for put (half of a round trip, with an event on each side), and from the call to the event \
for put-ack, get and atomic (fetch-add of as many words as the size has). In streams of short puts every 64th put is \
acknowledged, and the target takes each event.

gb_per_s is 10^9 bytes of payload a second. A write of more than 8 bytes is timed with an 8-byte flag written after it, \
since the order within one long write is undefined.

Fields of --json, one object a row, only ever added to:
  fabric service op layer size p50_ns p99_ns p999_ns mean_ns max_ns gb_per_s
  msgs_per_s count errors progress placement cpu peer_cpu offload eager_bytes
  depth entries

The last four are null except with --layer portals, and depth and entries are null except with --depth. placement is the \
distance of the CPUs of both processes: near, far, mixed (it changed), unknown. Compare rows of one placement only.

--listen serves one host after the other, and drops a host that is silent, even in the middle of a measurement.";

pub(super) const TRACE_EXAMPLES: &str = "\
Examples:
  hca portals trace                             all built-in scenarios
  hca portals trace --scenario unexpected
  hca portals trace my-lists.txt                your own scenario
  hca portals trace --json - < my-lists.txt

A scenario is a text of one statement a line; # begins a comment:
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

Everything runs in this process. In the table, - is an entry that was compared and did not take the message, = the entry \
that took it, > the result at the sender, ! an event at the target.";

pub(super) const TRACE_EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failed, 2 wrong usage or an invalid scenario, 3 a message ended otherwise than its line \
expects, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

pub(super) const PINGPONG_EXAMPLES: &str = "\
Examples:
  hca pingpong rc --listen                  prints its address, for example
                                            127.0.0.2:18515; then, beside it:
  hca pingpong rc --connect 127.0.0.2

  hca pingpong rc --listen --device udp://10.0.0.1
                                            then, on another host:
  ibv_rc_pingpong -g 1 10.0.0.1             (the index of a RoCEv2 GID)

  hca pingpong ud --connect 10.0.0.2 --device udp://10.0.0.1 --size 1024
                                            against ibv_ud_pingpong -g 1 -s 1024

  hca pingpong rc --cm --listen             by RDMA CM, as librdmacm does
  hca pingpong rc --cm --connect 127.0.0.2

The waiting end listens on the address of its device, and prints it to standard error. Both ends need the same size and \
iters.";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  hca run -n 4 ./program --its-option
  hca run -n 2 --device shm://lab --prefix ./program
  hca run -n 8 --timeout 60 --env RUST_LOG=debug -- ./program

Each process finds the others by PMI-1 (PMI_FD, PMI_RANK, PMI_SIZE), as under mpiexec. Rank 0 reads this command's \
standard input if that is no terminal; the others have none. Name a device that every process can open: auto://, udp://, \
shm://lab; a device with an address serves one process only.

When one process fails, all others get TERM, and KILL after --grace. Ctrl-C does the same to all. When this command is \
killed, they end, too.

Output is passed on line by line. Its reader may take any time until this command must end, and then has --grace.";

pub(super) const RUN_EXIT_CODES: &str = "\
Exit codes: 0 all processes succeeded; otherwise the code of the first that failed, 128 plus the number of the signal that \
ended it; 124 after --timeout, 127 if the program cannot be started, 1 failed otherwise, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by \
HUP.";

pub(super) const EXEC_EXAMPLES: &str = "\
Examples:
  hca exec ibv_devinfo
  hca exec ibv_rc_pingpong -g 1     in one terminal, and in another:
  hca exec ibv_rc_pingpong -g 1 127.0.0.1
  hca exec --device udp://10.0.0.1?share=yes --name rxe0 ibv_ud_pingpong -g 1
  hca exec rping -s -P              in one terminal, and in another:
  hca exec rping -c -a 127.0.0.1 -v -C 5
  hca exec --explain ./my-server

The program finds libibverbs, librdmacm and the provider libraries of this project first (LD_LIBRARY_PATH), and its \
devices in HCA_DEVICES: a list of NAME=URL with spaces between them. A preloaded library (LD_PRELOAD) shows it the \
devices below /sys/class/infiniband and /dev/infiniband. Processes that the program starts inherit all of it.";

pub(super) const EXEC_EXIT_CODES: &str = "\
Exit codes: those of the program; 127 if it cannot be started, 1 without the library, 2 wrong usage, 130 ended by Ctrl-C, 143 by TERM, 129 by HUP.";

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  hca serve --pci /tmp/a.sock --pci /tmp/b.sock
                                  two functions that reach each other
  hca serve --pci /tmp/a.sock --device udp://10.0.0.1
                                  a function that reaches other hosts, too
  hca serve --pci /tmp/a.sock --port roce
                                  with an Ethernet port, for RoCE
  hca serve --port roce --pci /tmp/a.sock,mac=02:00:00:00:00:01,ip=10.0.0.1
                                  the driver may use no other addresses
  hca serve --pci /tmp/a.sock,rate=2.5G
                                  it sends 2.5 Gbit/s at most

The command prints a line for each function when clients may connect. A client is a driver that speaks vfio-user, or QEMU \
10.1 or later with its memory in a memory-backend-memfd with share=on, and
  -device '{\"driver\":\"vfio-user-pci\",\"rombar\":0,
            \"socket\":{\"type\":\"unix\",\"path\":\"/tmp/a.sock\"}}'

Each socket has one client at a time; the next client finds the function reset. All functions share the adapter and its \
address. Without a device they reach each other only (loopback://). Ctrl-C ends the server.";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::{Cli, run};

    const WIDTHS: [usize; 3] = [80, 100, 120];

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
    fn the_help_of_perf_fits_two_screens() {
        let said = |args: [&str; 3]| Cli::try_parse_from(args).expect_err("it is a help").to_string();
        for long in [["hca", "perf", "--help"], ["hca", "help", "perf"]] {
            assert_eq!(said(["hca", "perf", "-h"]), said(long), "all show the same");
        }
        let mut perf = Cli::command().find_subcommand("perf").expect("it is there").clone().term_width(80);
        let help = perf.render_help().to_string();
        let lines = help.lines().count();
        assert!(lines <= 60, "{lines} lines of 80 columns:\n{help}");
    }

    #[test]
    fn every_help_names_all_exit_codes_of_signals() {
        for (name, help) in all(100).into_iter().filter(|(name, _)| !["portals"].contains(&name.as_str())) {
            let said = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains("130 ended by Ctrl-C, 143 by TERM, 129 by HUP"), "{name}: {said}");
        }
    }
}
