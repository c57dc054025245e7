//! `long double` and complex products compared with the results of C, on all edge values.
//!
//! A C compiler builds the other side; without a C compiler the test is skipped and reports that. The vectors in
//! `src/atomic/tests.rs` need no compiler.
#![cfg(target_arch = "x86_64")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use hca_matching::atomic::{AtomicOp, Datatype, apply};
use test_support::random::Rng;

/// For each record of four numbers: a+b, a*b, (a+bi)*(c+di), and whether a<b, a<=b, a==b, a!=b; then the latter two for
/// double. Of a long double, 10 bytes count.
const C: &str = r#"
#include <complex.h>
#include <stdio.h>
#include <string.h>
static void put(long double x) { unsigned char b[16] = {0}; memcpy(b, &x, 10); fwrite(b, 1, 16, stdout); }
int main(void) {
    unsigned char in[96];
    while (fread(in, 1, 96, stdin) == 96) {
        volatile long double a, b, c, d;
        memcpy((void *)&a, in, 16); memcpy((void *)&b, in + 16, 16);
        memcpy((void *)&c, in + 32, 16); memcpy((void *)&d, in + 48, 16);
        put(a + b);
        put(a * b);
        long double x = a, y = b, z = c, w = d;
        long double _Complex p = __builtin_complex(x, y) * __builtin_complex(z, w);
        put(creall(p)); put(cimagl(p));
        unsigned char flags[16] = { a < b, a <= b, a == b, a != b };
        fwrite(flags, 1, 16, stdout);
        volatile double e[4];
        memcpy((void *)e, in + 64, 32);
        double _Complex q = __builtin_complex(e[0], e[1]) * __builtin_complex(e[2], e[3]);
        double parts[2] = { creal(q), cimag(q) };
        fwrite(parts, 1, 16, stdout);
    }
    return 0;
}
"#;
const RECORD: usize = 96;
const ANSWER: usize = 96;

struct Draw(Rng);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0.of(choices)
    }
    /// Bits as sums of few powers of two, near ties, or any.
    fn significand(&mut self) -> u64 {
        let (a, b) = (self.next() % 64, self.next() % 64);
        let any = self.next();
        self.of(&[
            0,
            1,
            1 << a | 1 << b,
            u64::MAX << a,
            u64::MAX >> a,
            !(1 << a),
            any,
            any << a,
            3 << 62,
            1 << 62,
        ])
    }
    fn long_double(&mut self) -> [u8; 16] {
        let near = (self.next() % 140) as u16;
        let any = self.next() as u16 & 0x7fff;
        let exponent =
            self.of(&[0, 0, 1, near, 0x3fff - 70 + near, 0x3fff, 0x7ffe, 0x7ffe - near, 0x7fff, any]);
        let mut significand = self.significand();
        // Mostly what is a number.
        if exponent != 0 && !self.next().is_multiple_of(16) {
            significand |= 1 << 63;
        }
        let sign = (self.next() as u16 & 1) << 15;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&(sign | exponent).to_le_bytes());
        bytes
    }
    fn double(&mut self) -> f64 {
        let any = f64::from_bits(self.next());
        self.of(&[0.0, -0.0, 1.0, -1.0, 1e200, -1e-200, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, any])
    }
}

fn compile() -> Option<std::path::PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("long-double-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("oracle.c"), dir.join("oracle"));
    std::fs::write(&source, C).unwrap();
    let cc = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).arg("-lm").status();
    match cc {
        Ok(status) => assert!(status.success(), "the oracle compiles"),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    }
    Some(program)
}

fn ask(program: &Path, records: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the oracle runs");
    let mut stdin = child.stdin.take().unwrap();
    let records = records.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&records).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}

fn done(op: AtomicOp, ty: Datatype, target: &[u8], message: &[u8], operand: &[u8]) -> Vec<u8> {
    let mut target = target.to_vec();
    apply(op, ty, &mut target, message, operand, None).unwrap();
    target
}

fn nan(cell: &[u8]) -> bool {
    let significand = u64::from_le_bytes(cell[..8].try_into().unwrap());
    let exponent = u16::from_le_bytes(cell[8..10].try_into().unwrap()) & 0x7fff;
    exponent == 0x7fff && significand << 1 != 0 || exponent != 0 && significand >> 63 == 0
}

fn check(record: &[u8], answer: &[u8]) {
    use AtomicOp::*;
    let (a, b) = (&record[..16], &record[16..32]);
    let ld = Datatype::LongDouble;
    assert_eq!(done(Sum, ld, a, b, &[])[..10], answer[..10], "{a:x?} + {b:x?}");
    assert_eq!(done(Prod, ld, a, b, &[])[..10], answer[16..26], "{a:x?} * {b:x?}");
    let product = done(Prod, Datatype::LongDoubleComplex, &record[..32], &record[32..64], &[]);
    for (ours, theirs) in product.chunks(16).zip(answer[32..64].chunks(16)) {
        // Which of several that are not numbers comes out is the compiler's.
        assert!(ours[..10] == theirs[..10] || nan(ours) && nan(theirs), "{record:x?}: {ours:x?} {theirs:x?}");
    }
    let mark = [0x5a; 16];
    for (op, wanted) in [CswapLt, CswapLe, Cswap, CswapNe].into_iter().zip(&answer[64..68]) {
        // The operand is on the left.
        assert_eq!(done(op, ld, b, &mark, a) == mark, *wanted == 1, "{op:?} {a:x?} {b:x?}");
    }
    let product = done(Prod, Datatype::C64, &record[64..80], &record[80..96], &[]);
    for (ours, theirs) in product.chunks(8).zip(answer[80..96].chunks(8)) {
        let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap());
        let (ours, theirs) = (number(ours), number(theirs));
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{ours} {theirs}");
    }
}

#[test]
fn long_double_and_complex_products_are_those_of_c() {
    let Some(program) = compile() else { return };
    let records = if cfg!(debug_assertions) { 20_000 } else { 500_000 };
    let mut draw = Draw(Rng::new(1));
    let mut bytes = Vec::with_capacity(records * RECORD);
    for _ in 0..records {
        (0..4).for_each(|_| bytes.extend(draw.long_double()));
        (0..4).for_each(|_| bytes.extend(draw.double().to_le_bytes()));
    }
    let answers = ask(&program, &bytes);
    assert_eq!(answers.len(), records * ANSWER);
    bytes.chunks(RECORD).zip(answers.chunks(ANSWER)).for_each(|(record, answer)| check(record, answer));
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
}
