//! The kernel's machine of classic BPF, for tests of programs.

use libc::sock_filter;

/// Runs a program. `load` gives so many bytes at an offset, as a number; without them the program ends with 0.
pub(crate) fn run(program: &[sock_filter], load: &dyn Fn(u32, usize) -> Option<u32>) -> u32 {
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
    for _ in 0..1000 {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let code = u32::from(code);
        let bytes = match code & 0x18 {
            libc::BPF_W => 4,
            libc::BPF_H => 2,
            _ => 1,
        };
        match code & 0x07 {
            libc::BPF_LD => {
                let from = if code & 0xe0 == libc::BPF_IND { x } else { 0 };
                let Some(value) = load(from + k, bytes) else { return 0 };
                a = value;
            }
            libc::BPF_LDX if code & 0xe0 == libc::BPF_MSH => {
                let Some(value) = load(k, 1) else { return 0 };
                x = (value & 15) * 4;
            }
            libc::BPF_LDX if code & 0xe0 == libc::BPF_IMM => x = k,
            libc::BPF_ALU if code & 0xf0 == libc::BPF_AND => a &= k,
            libc::BPF_ALU if code & 0xf0 == libc::BPF_RSH => a >>= k,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => at += k as usize,
            libc::BPF_JMP => {
                let yes = match code & 0xf0 {
                    libc::BPF_JEQ => a == k,
                    libc::BPF_JGE => a >= k,
                    libc::BPF_JSET => a & k != 0,
                    other => panic!("jump {other:#x}"),
                };
                at += usize::from(if yes { jt } else { jf });
            }
            libc::BPF_RET => return if code & 0x18 == libc::BPF_A { a } else { k },
            other => panic!("class {other:#x} of {code:#x}"),
        }
    }
    panic!("the program does not end");
}

/// Bytes at an offset as a number.
pub(crate) fn big_endian(bytes: &[u8], at: u32, len: usize) -> Option<u32> {
    let found = bytes.get(at as usize..)?.get(..len)?;
    Some(found.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
}
