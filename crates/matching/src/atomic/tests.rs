use super::*;

fn run(op: AtomicOp, ty: Datatype, target: &[u8], message: &[u8], operand: &[u8]) -> Vec<u8> {
    let mut result = target.to_vec();
    let mut fetched = vec![0xee; target.len()];
    apply(op, ty, &mut result, message, operand, Some(&mut fetched)).unwrap();
    assert_eq!(fetched, target, "what was there before is fetched");
    let mut alone = target.to_vec();
    apply(op, ty, &mut alone, message, operand, None).unwrap();
    assert_eq!(alone, result);
    result
}

#[test]
fn numbers_are_those_of_portals_4_3() {
    assert_eq!((AtomicOp::ALL.len(), Datatype::ALL.len()), (18, 14));
    for (number, &op) in AtomicOp::ALL.iter().enumerate() {
        assert_eq!(AtomicOp::from_number(number as u8), Some(op));
    }
    for (number, &ty) in Datatype::ALL.iter().enumerate() {
        assert_eq!(Datatype::from_number(number as u8), Some(ty));
    }
    assert_eq!((AtomicOp::from_number(18), Datatype::from_number(14)), (None, None));
}

#[test]
fn legal_pairs_and_no_others_are_done() {
    let mut legal = 0;
    for &op in AtomicOp::ALL {
        for &ty in Datatype::ALL {
            let mut target = vec![0; ty.size_bytes()];
            let message = target.clone();
            let done = apply(op, ty, &mut target, &message, &message, None);
            let wanted = match op.takes(ty) {
                true => Ok(()),
                false if ty.is_supported() => Err(AtomicError::Pair { op, ty }),
                false => Err(AtomicError::Unsupported { ty }),
            };
            assert_eq!(done, wanted);
            legal += usize::from(done.is_ok());
        }
    }
    // All 18 on 8 integers; 11 on 3 reals; 5 on 3 complex types.
    let long_doubles = if cfg!(target_arch = "x86_64") { 0 } else { 11 + 5 };
    assert_eq!(legal, 18 * 8 + 11 * 3 + 5 * 3 - long_doubles);
}

/// What each operation is on integers, in a type that holds them all.
fn plain(op: AtomicOp, t: i128, m: i128, o: i128) -> i128 {
    let swap_if = |swap: bool| if swap { m } else { t };
    match op {
        AtomicOp::Min => t.min(m),
        AtomicOp::Max => t.max(m),
        AtomicOp::Sum => t + m,
        AtomicOp::Prod => t.wrapping_mul(m),
        AtomicOp::Lor => i128::from(t != 0 || m != 0),
        AtomicOp::Land => i128::from(t != 0 && m != 0),
        AtomicOp::Bor => t | m,
        AtomicOp::Band => t & m,
        AtomicOp::Lxor => i128::from((t != 0) ^ (m != 0)),
        AtomicOp::Bxor => t ^ m,
        AtomicOp::Swap => m,
        AtomicOp::Cswap => swap_if(o == t),
        AtomicOp::CswapNe => swap_if(o != t),
        AtomicOp::CswapLe => swap_if(o <= t),
        AtomicOp::CswapLt => swap_if(o < t),
        AtomicOp::CswapGe => swap_if(o >= t),
        AtomicOp::CswapGt => swap_if(o > t),
        AtomicOp::Mswap => (m & o) | (t & !o),
    }
}

macro_rules! every_operation_on {
    ($($test:ident: $rust:ty = $ty:expr;)*) => { $(
        #[test]
        fn $test() {
            let values = [0, 1, 2, 3, 7, 100, <$rust>::MAX, <$rust>::MAX - 1, <$rust>::MIN, <$rust>::MIN + 1, !0, !6];
            for &op in AtomicOp::ALL {
                for t in values {
                    for m in values {
                        for o in values {
                            let bytes = |x: $rust| x.to_ne_bytes();
                            let result = run(op, $ty, &bytes(t), &bytes(m), &bytes(o));
                            let wanted = plain(op, i128::from(t), i128::from(m), i128::from(o)) as $rust;
                            assert_eq!(result, bytes(wanted), "{op:?} {t} {m} {o}");
                        }
                    }
                }
            }
        }
    )* };
}
every_operation_on! {
    every_operation_on_i8: i8 = Datatype::I8;
    every_operation_on_u8: u8 = Datatype::U8;
    every_operation_on_i16: i16 = Datatype::I16;
    every_operation_on_u16: u16 = Datatype::U16;
    every_operation_on_i32: i32 = Datatype::I32;
    every_operation_on_u32: u32 = Datatype::U32;
    every_operation_on_i64: i64 = Datatype::I64;
    every_operation_on_u64: u64 = Datatype::U64;
}

macro_rules! every_operation_on_floats {
    ($($test:ident: $rust:ty = $ty:expr;)*) => { $(
        #[test]
        fn $test() {
            let values = [0.0, -0.0, 1.5, -2.25, <$rust>::MAX, <$rust>::INFINITY, <$rust>::NEG_INFINITY, <$rust>::NAN];
            for &op in AtomicOp::ALL.iter().filter(|op| op.takes($ty)) {
                for (t, m, o) in values.iter().flat_map(|&t| values.map(|m| (t, m))).flat_map(|(t, m)| values.map(|o| (t, m, o))) {
                    let bytes = |x: $rust| x.to_ne_bytes();
                    let wanted = match op {
                        AtomicOp::Min => if m < t { m } else { t },
                        AtomicOp::Max => if m > t { m } else { t },
                        AtomicOp::Sum => t + m,
                        AtomicOp::Prod => t * m,
                        AtomicOp::Swap => m,
                        AtomicOp::Cswap => if o == t { m } else { t },
                        AtomicOp::CswapNe => if o != t { m } else { t },
                        AtomicOp::CswapLe => if o <= t { m } else { t },
                        AtomicOp::CswapLt => if o < t { m } else { t },
                        AtomicOp::CswapGe => if o >= t { m } else { t },
                        AtomicOp::CswapGt => if o > t { m } else { t },
                        _ => unreachable!(),
                    };
                    let result = run(op, $ty, &bytes(t), &bytes(m), &bytes(o));
                    let got = <$rust>::from_ne_bytes(result[..].try_into().unwrap());
                    assert!(got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan(), "{op:?} {t} {m} {o}: {got}");
                }
            }
        }
    )* };
}
every_operation_on_floats! {
    every_operation_on_f32: f32 = Datatype::F32;
    every_operation_on_f64: f64 = Datatype::F64;
}

fn complex(re: f64, im: f64) -> Vec<u8> {
    [re, im].map(f64::to_ne_bytes).concat()
}

#[test]
fn complex_numbers_are_added_multiplied_and_compared_by_both_parts() {
    let c = Datatype::C64;
    assert_eq!(run(AtomicOp::Sum, c, &complex(1.0, 2.0), &complex(0.5, -4.0), &[]), complex(1.5, -2.0));
    assert_eq!(run(AtomicOp::Prod, c, &complex(1.0, 2.0), &complex(3.0, -4.0), &[]), complex(11.0, 2.0));
    let (a, b) = (complex(1.0, 2.0), complex(9.0, 9.0));
    assert_eq!(run(AtomicOp::Cswap, c, &a, &b, &complex(1.0, 2.0)), b);
    assert_eq!(run(AtomicOp::Cswap, c, &a, &b, &complex(1.0, 3.0)), a);
    assert_eq!(run(AtomicOp::CswapNe, c, &a, &b, &complex(1.0, 3.0)), b);
    let single = |re: f32, im: f32| [re, im].map(f32::to_ne_bytes).concat();
    assert_eq!(
        run(AtomicOp::Prod, Datatype::C32, &single(0.0, 1.0), &single(0.0, 1.0), &[]),
        single(-1.0, 0.0)
    );
}

#[test]
fn products_of_infinite_complex_numbers_are_infinite() {
    let infinite = |a: (f64, f64), b: (f64, f64)| {
        let product = Complex { re: a.0, im: a.1 }.times(Complex { re: b.0, im: b.1 });
        product.re.is_infinite() || product.im.is_infinite()
    };
    let inf = f64::INFINITY;
    assert!(infinite((inf, inf), (1.0, 1.0)));
    assert!(infinite((inf, f64::NAN), (1.0, 0.0)));
    assert!(infinite((0.0, 2.0), (f64::NAN, -inf)));
    assert!(infinite((1e300, 1e300), (1e300, 1e300)));
    assert!(!infinite((f64::NAN, f64::NAN), (1.0, 1.0)));
}

#[test]
fn a_message_of_several_elements_is_done_element_by_element() {
    let bytes = |words: [u16; 3]| words.map(u16::to_ne_bytes).concat();
    let result = run(AtomicOp::Max, Datatype::U16, &bytes([1, 20, 300]), &bytes([10, 2, 301]), &[]);
    assert_eq!(result, bytes([10, 20, 301]));
    assert_eq!(
        run(AtomicOp::Swap, Datatype::U16, &bytes([1, 2, 3]), &bytes([4, 5, 6]), &[]),
        bytes([4, 5, 6])
    );
    assert_eq!(run(AtomicOp::Cswap, Datatype::U32, &[], &[], &[0; 4]), [0u8; 0]);
}

#[test]
fn lengths_that_do_not_go_together_are_named() {
    let ty = Datatype::U32;
    let mut target = [0u8; 8];
    let length = |argument, length| Err(AtomicError::Length { argument, length, ty });
    let mut check = |op, n: usize, message: &[u8], operand: &[u8], fetched: Option<&mut [u8]>| {
        apply(op, ty, &mut target[..n], message, operand, fetched)
    };
    assert_eq!(check(AtomicOp::Sum, 7, &[0; 7], &[], None), length("target", 7));
    assert_eq!(check(AtomicOp::Sum, 8, &[0; 4], &[], None), length("message", 4));
    assert_eq!(check(AtomicOp::Cswap, 8, &[0; 8], &[0; 8], None), length("target", 8));
    assert_eq!(check(AtomicOp::Mswap, 4, &[0; 4], &[0; 3], None), length("operand", 3));
    assert_eq!(check(AtomicOp::Sum, 8, &[0; 8], &[], Some(&mut [0; 4])), length("fetched", 4));
    assert_eq!(check(AtomicOp::Cswap, 4, &[0; 4], &[0; 32], None), Ok(()), "an operand may be longer");
}

#[cfg(target_arch = "x86_64")]
mod long_double {
    use super::*;

    const ONE: (u16, u64) = (0x3fff, 1 << 63);

    fn cell((sign_exponent, significand): (u16, u64)) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        X87 { sign_exponent, significand }.write(&mut bytes);
        bytes
    }
    fn value(bytes: &[u8]) -> (u16, u64) {
        let X87 { sign_exponent, significand } = X87::read(bytes);
        (sign_exponent, significand)
    }
    fn does(op: AtomicOp, a: (u16, u64), b: (u16, u64)) -> (u16, u64) {
        value(&run(op, Datatype::LongDouble, &cell(a), &cell(b), &[]))
    }

    /// Reference vectors, as an x86-64 processor computed them (see `tests/long_double.rs` for many more).
    #[test]
    fn sums_and_products_are_those_of_the_x87() {
        const TOP: u64 = 1 << 63;
        const NAN: (u16, u64) = (0xffff, 3 << 62);
        for (op, a, b, wanted) in [
            (AtomicOp::Sum, ONE, ONE, (0x4000, TOP)),
            // A tie goes to the even one, in both directions; a bit more than a tie goes up.
            (AtomicOp::Sum, ONE, (0x3fbf, TOP), ONE),
            (AtomicOp::Sum, (0x3fff, TOP | 1), (0x3fbf, TOP), (0x3fff, TOP | 2)),
            (AtomicOp::Sum, ONE, (0x3fbf, TOP | 1), (0x3fff, TOP | 1)),
            // Cancellation, with a borrow from far below.
            (AtomicOp::Sum, ONE, (0xbfff, TOP), (0, 0)),
            (AtomicOp::Sum, ONE, (0xbfbe, TOP), (0x3fff, TOP)),
            (AtomicOp::Sum, ONE, (0xbfbf, TOP), (0x3ffe, u64::MAX)),
            (AtomicOp::Sum, (0x8000, 0), (0x8000, 0), (0x8000, 0)),
            (AtomicOp::Sum, (0x8000, 0), (0, 0), (0, 0)),
            // Denormal numbers, and the step to normal ones.
            (AtomicOp::Sum, (0, TOP - 1), (0, 1), (1, TOP)),
            (AtomicOp::Sum, (1, TOP), (0x8000, 1), (0, TOP - 1)),
            (AtomicOp::Prod, (1, TOP), (0x3ffe, TOP), (0, 1 << 62)),
            (AtomicOp::Prod, (0, 1), (0x3ffe, TOP), (0, 0)),
            (AtomicOp::Prod, (0, 3), (0x3ffe, TOP), (0, 2)),
            (AtomicOp::Prod, (0, TOP), ONE, (1, TOP)),
            // Overflow.
            (AtomicOp::Sum, (0x7ffe, u64::MAX), (0x7ffe, u64::MAX), (0x7fff, TOP)),
            (AtomicOp::Prod, (0x7ffe, TOP), (0xc000, TOP), (0xffff, TOP)),
            (AtomicOp::Prod, (0x3fff, u64::MAX), (0x3fff, u64::MAX), (0x4000, u64::MAX - 1)),
            // Infinities, and what is not a number: the larger one, made quiet.
            (AtomicOp::Sum, (0x7fff, TOP), (0xffff, TOP), NAN),
            (AtomicOp::Prod, (0x7fff, TOP), (0, 0), NAN),
            (AtomicOp::Sum, (0x7fff, TOP), ONE, (0x7fff, TOP)),
            (AtomicOp::Sum, (0x7fff, TOP | 5), ONE, (0x7fff, (3 << 62) | 5)),
            (AtomicOp::Sum, (0x7fff, (3 << 62) | 5), (0xffff, (3 << 62) | 6), (0xffff, (3 << 62) | 6)),
            (AtomicOp::Prod, (0x7fff, (3 << 62) | 5), (0x7fff, TOP | 6), (0x7fff, (3 << 62) | 5)),
            (AtomicOp::Sum, (0xffff, (3 << 62) | 5), (0x7fff, (3 << 62) | 5), (0x7fff, (3 << 62) | 5)),
            // An exponent without an integer bit is no number at all.
            (AtomicOp::Sum, (0x3fff, 1), ONE, NAN),
        ] {
            assert_eq!(does(op, a, b), wanted, "{op:?} {a:x?} {b:x?}");
        }
    }

    #[test]
    fn smaller_and_larger_follow_sign_exponent_and_significand() {
        let order = [
            (0xffff, 1 << 63),
            (0xc000, 1 << 63),
            (0xbfff, 1 << 63),
            (0x8000, 9),
            (0x8000, 1),
            (0, 0),
            (0, 1),
            (1, 1 << 63),
            ONE,
            (0x3fff, (1 << 63) | 1),
            (0x7fff, 1 << 63),
        ];
        for (i, &a) in order.iter().enumerate() {
            for &b in &order[i..] {
                assert_eq!((does(AtomicOp::Min, a, b), does(AtomicOp::Min, b, a)), (a, a));
                assert_eq!((does(AtomicOp::Max, a, b), does(AtomicOp::Max, b, a)), (b, b));
            }
            let nan = (0x7fff, 3 << 62);
            assert_eq!((does(AtomicOp::Min, a, nan), does(AtomicOp::Max, nan, a)), (a, nan), "the target's");
        }
    }

    #[test]
    fn conditional_swaps_compare_values() {
        let (zero, minus_zero) = (cell((0, 0)), cell((0x8000, 0)));
        let (one, two) = (cell(ONE), cell((0x4000, 1 << 63)));
        let does = |op, t: &[u8], o: &[u8]| run(op, Datatype::LongDouble, t, &two, o) == two;
        assert!(does(AtomicOp::Cswap, &zero, &minus_zero));
        assert!(!does(AtomicOp::Cswap, &zero, &one));
        assert!(does(AtomicOp::CswapLt, &one, &zero) && !does(AtomicOp::CswapLt, &one, &one));
        assert!(does(AtomicOp::CswapLe, &one, &one) && does(AtomicOp::CswapGe, &one, &one));
        assert!(does(AtomicOp::CswapGt, &zero, &one) && does(AtomicOp::CswapNe, &zero, &one));
    }

    #[test]
    fn bytes_that_fill_a_cell_up_are_left_alone_by_arithmetic_and_exchanged_by_swaps() {
        let mut target = cell(ONE);
        target[10..].fill(0xaa);
        let mut message = cell(ONE);
        message[10..].fill(0xbb);
        let sum = run(AtomicOp::Sum, Datatype::LongDouble, &target, &message, &[]);
        assert_eq!((value(&sum), &sum[10..]), ((0x4000, 1 << 63), &[0xaa; 6][..]));
        assert_eq!(run(AtomicOp::Swap, Datatype::LongDouble, &target, &message, &[]), message);
    }
}

/// As the x87 has it: a difference with what is not a number is that, sign and all.
#[test]
fn what_is_not_a_number_keeps_its_sign() {
    use super::number::Real;
    for sign_exponent in [0x7fff, 0xffff] {
        let nan = X87 { sign_exponent, significand: 3 << 62 };
        for result in [X87::ONE.minus(nan), nan.minus(X87::ONE)] {
            assert_eq!((result.sign_exponent, result.significand), (sign_exponent, 3 << 62));
        }
    }
    // Of two, the quiet one; else that with more bits; else the positive one. The result is quiet.
    let nan = |sign_exponent, significand: u64| X87 { sign_exponent, significand: 1 << 63 | significand };
    let (quiet, signals) = (nan(0xffff, 1 << 62), nan(0x7fff, (1 << 62) - 1));
    for (a, b, wanted) in [
        (quiet, signals, quiet),
        (nan(0x7fff, 1), nan(0xffff, 2), nan(0xffff, 1 << 62 | 2)),
        (nan(0x7fff, 2), nan(0xffff, 2), nan(0x7fff, 1 << 62 | 2)),
    ] {
        for result in [a.plus(b), b.plus(a)] {
            assert_eq!(
                (result.sign_exponent, result.significand),
                (wanted.sign_exponent, wanted.significand)
            );
        }
    }
}
