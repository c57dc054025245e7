//! The classic BPF program that steers a packet to the process of its destination queue pair.

use libc::sock_filter;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

/// The word of the BTH that holds the number of the destination queue pair, in its lower 24 bits.
const DEST_QP_WORD: u32 = 4;
/// Numbers that belong to no process: those of the management queue pairs, and the one that stands for a group.
const OF_ALL: [u32; 3] = [0, 1, 0xff_ffff];

/// The index of a packet's socket: the top byte of the number of the queue pair that it is for, and `slots`, which is
/// the desk's, where that is of no process.
pub(super) fn program(slots: u16) -> Vec<sock_filter> {
    let op = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // Offsets count from the UDP payload.
    let mut ops = vec![op(LOAD_WORD, 0, 0, DEST_QP_WORD), op(AND, 0, 0, 0xff_ffff)];
    let to_desk = OF_ALL.len() as u8 + 2;
    ops.extend(OF_ALL.iter().enumerate().map(|(i, n)| op(IF_EQUAL, to_desk - i as u8, 0, *n)));
    ops.extend([
        op(SHIFT_RIGHT, 0, 0, 16),
        op(IF_AT_LEAST, 1, 0, slots.into()),
        op(RETURN_A, 0, 0, 0),
        op(RETURN, 0, 0, slots.into()),
    ]);
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel does.
    fn run(program: &[sock_filter], payload: &[u8]) -> u32 {
        let (mut a, mut at) = (0, 0);
        loop {
            let op = program[at];
            at += 1;
            match op.code {
                LOAD_WORD => match payload.get(op.k as usize..).and_then(|p| p.first_chunk()) {
                    Some(word) => a = u32::from_be_bytes(*word),
                    None => return 0,
                },
                AND => a &= op.k,
                SHIFT_RIGHT => a >>= op.k,
                IF_EQUAL => at += usize::from(if a == op.k { op.jt } else { op.jf }),
                IF_AT_LEAST => at += usize::from(if a >= op.k { op.jt } else { op.jf }),
                RETURN => return op.k,
                RETURN_A => return a,
                other => panic!("code {other:#x}"),
            }
        }
    }

    #[test]
    fn a_packet_goes_to_its_queue_pairs_process_and_what_is_of_none_to_the_desk() {
        let program = program(64);
        let to = |qpn: u32| {
            let mut packet = [0xff; 12];
            packet[4..8].copy_from_slice(&(qpn | 0x8000_0000).to_be_bytes());
            run(&program, &packet)
        };
        for (qpn, socket) in [
            (0, 64),
            (1, 64),
            (2, 0),
            (0xffff, 0),
            (0x01_0000, 1),
            (0x01_0001, 1),
            (0x3f_ffff, 63),
            (0x40_0000, 64),
            (0xff_fffe, 64),
            (0xff_ffff, 64),
        ] {
            assert_eq!(to(qpn), socket, "{qpn:#x}");
        }
        assert_eq!(run(&program, &[0; 7]), 0, "a packet without a BTH");
    }
}
