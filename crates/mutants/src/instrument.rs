//! Writes all mutants of a file into it, each of them behind a question to the runtime.
//!
//! An operator becomes `(match mutant_rt::of(FIRST, COUNT) { 4294967295 => a + b, 0 => (a) - (b), _ => (a) * (b) })`.
//! The arm of the original holds the mutants of its operands; the others have the operands as they were written, so that
//! the text grows by the depth of expressions only. A function's value is returned before its body; an arm of a `match`
//! is left out by its guard.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr};

use crate::list::{Genre, Lines, Mutant, Position};

/// A file with its mutants.
#[derive(Default)]
pub(crate) struct Instrumented {
    pub(crate) text: String,
    /// Where in the text mutants are, outer ones first.
    pub(crate) spots: Vec<Spot>,
    /// The mutants' numbers in this text: the mutant, its number, the number of its place's first.
    pub(crate) numbers: Vec<Number>,
    /// Mutants for which there is no such form.
    pub(crate) left: Vec<usize>,
    /// Mutants that can't compile.
    pub(crate) unviable: Vec<usize>,
    /// Mutants in what the compiler may evaluate, where none is chosen.
    pub(crate) constant: Vec<usize>,
}

/// A mutant's number at run time.
pub(crate) struct Number {
    pub(crate) mutant: usize,
    pub(crate) number: u32,
    /// The number by which the place is recorded as reached.
    pub(crate) place: u32,
}

/// A piece of the text: an error in it is the fault of these mutants.
pub(crate) struct Spot {
    pub(crate) range: Range<usize>,
    pub(crate) mutants: Vec<usize>,
}

/// Mutants that stand at one place, with the text that each of them puts there.
type Alternatives = Vec<(usize, String)>;

/// Where something is put; ordered as it is written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    start: usize,
    kind: Kind,
    /// Negative, so that what holds another comes before it.
    minus_end: isize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Before a function's body: returns.
    Return,
    /// Behind the pattern of an arm without a guard.
    Arm,
    /// Before a guard with `let`.
    Guard,
    /// Around an expression.
    Around,
}

/// Writes the mutants of one file into its text, but for those that do not compile; the first gets number `next`.
pub(crate) fn instrument(
    text: &str,
    mutants: &[(usize, &Mutant)],
    dropped: &HashSet<usize>,
    next: &mut u32,
) -> Result<Instrumented, String> {
    let lines = Lines::new(text);
    let file = syn::parse_file(text).map_err(|e| e.to_string())?;
    let mut found = Found::new(&lines);
    found.visit_file(&file);
    let mut out = Instrumented::default();
    let mut places: BTreeMap<Place, Alternatives> = BTreeMap::new();
    for &(index, mutant) in mutants {
        let at = lines.range(mutant.span).start;
        if found.constant.iter().any(|range| range.contains(&at)) {
            out.constant.push(index);
        }
        match found.place(text, mutant) {
            Some(_) if dropped.contains(&index) => {}
            Some((place, alternative)) => places.entry(place).or_default().push((index, alternative)),
            None if found.chains.contains(&at) => out.unviable.push(index),
            None => out.left.push(index),
        }
    }
    let places: Vec<_> = places.into_iter().collect();
    let mut writer = Writer { source: text, places: &places, at: 0, next, out: &mut out };
    writer.write(0..text.len());
    Ok(out)
}

/// A file with one mutant, as cargo-mutants writes it.
pub(crate) fn replaced(text: &str, mutant: &Mutant) -> String {
    let span = Lines::new(text).range(mutant.span);
    format!("{}{}{}", &text[..span.start], mutant.replacement, &text[span.end..])
}

/// What of a file can be mutated, by the place that cargo-mutants tells.
struct Found<'a> {
    lines: &'a Lines<'a>,
    binary: HashMap<usize, Operation>,
    /// Whole expression and operand.
    unary: HashMap<usize, (Range<usize>, Range<usize>)>,
    /// The end of the pattern.
    arms: HashMap<usize, usize>,
    /// Whether there is a `let` in the guard.
    guards: HashMap<usize, bool>,
    /// The whole expression, by the start of each of its fields.
    fields: HashMap<usize, Range<usize>>,
    /// Operators that hold a chain with `let` together.
    chains: HashSet<usize>,
    /// What the compiler may evaluate.
    constant: Vec<Range<usize>>,
}

struct Operation {
    whole: Range<usize>,
    left: Range<usize>,
    right: Range<usize>,
}

impl<'a> Found<'a> {
    fn new(lines: &'a Lines<'a>) -> Self {
        Self {
            lines,
            binary: HashMap::new(),
            unary: HashMap::new(),
            arms: HashMap::new(),
            guards: HashMap::new(),
            fields: HashMap::new(),
            chains: HashSet::new(),
            constant: Vec::new(),
        }
    }

    fn offset(&self, at: LineColumn) -> usize {
        self.lines.offset(Position { line: at.line, column: at.column + 1 })
    }
    fn range(&self, spanned: &impl Spanned) -> Range<usize> {
        let span = spanned.span();
        self.offset(span.start())..self.offset(span.end())
    }

    /// Where a mutant is put, and its text there; `None`: there is no form for it.
    fn place(&self, text: &str, mutant: &Mutant) -> Option<(Place, String)> {
        let span = self.lines.range(mutant.span);
        let point = |kind, at: usize| Place { start: at, kind, minus_end: -(at as isize) };
        let around = |range: &Range<usize>| Place {
            start: range.start,
            kind: Kind::Around,
            minus_end: -(range.end as isize),
        };
        let new = &mutant.replacement;
        Some(match mutant.genre {
            // The body decides which type is returned.
            Genre::FnValue if mutant.function.as_ref().is_some_and(|f| f.return_type.contains("impl ")) => {
                return None;
            }
            Genre::FnValue => (point(Kind::Return, span.start), new.clone()),
            Genre::BinaryOperator => {
                let Operation { whole, left, right } = self.binary.get(&span.start)?;
                (around(whole), format!("({}) {new} ({})", &text[left.clone()], &text[right.clone()]))
            }
            Genre::UnaryOperator => {
                let (whole, operand) = self.unary.get(&span.start)?;
                (around(whole), text[operand.clone()].to_owned())
            }
            Genre::MatchArm => (point(Kind::Arm, *self.arms.get(&span.start)?), String::new()),
            Genre::MatchArmGuard => match self.guards.get(&span.start)? {
                false => (around(&span), new.clone()),
                true if new == "false" => (point(Kind::Guard, span.start), String::new()),
                true => return None,
            },
            Genre::StructField => {
                let whole = self.fields.get(&span.start)?;
                (around(whole), format!("{}{}", &text[whole.start..span.start], &text[span.end..whole.end]))
            }
            Genre::Other => return None,
        })
    }
}

impl<'ast> Visit<'ast> for Found<'_> {
    fn visit_item_fn(&mut self, i: &'ast syn::ItemFn) {
        if i.sig.constness.is_some() {
            self.constant.push(self.range(i));
        }
        visit::visit_item_fn(self, i);
    }
    fn visit_impl_item_fn(&mut self, i: &'ast syn::ImplItemFn) {
        if i.sig.constness.is_some() {
            self.constant.push(self.range(i));
        }
        visit::visit_impl_item_fn(self, i);
    }
    fn visit_item_const(&mut self, i: &'ast syn::ItemConst) {
        self.constant.push(self.range(i));
        visit::visit_item_const(self, i);
    }
    fn visit_impl_item_const(&mut self, i: &'ast syn::ImplItemConst) {
        self.constant.push(self.range(i));
        visit::visit_impl_item_const(self, i);
    }
    fn visit_trait_item_const(&mut self, i: &'ast syn::TraitItemConst) {
        self.constant.push(self.range(i));
        visit::visit_trait_item_const(self, i);
    }
    fn visit_item_static(&mut self, i: &'ast syn::ItemStatic) {
        self.constant.push(self.range(i));
        visit::visit_item_static(self, i);
    }
    fn visit_expr_const(&mut self, i: &'ast syn::ExprConst) {
        self.constant.push(self.range(i));
        visit::visit_expr_const(self, i);
    }
    /// A length.
    fn visit_expr_repeat(&mut self, i: &'ast syn::ExprRepeat) {
        self.constant.push(self.range(&i.len));
        visit::visit_expr_repeat(self, i);
    }
    fn visit_type_array(&mut self, i: &'ast syn::TypeArray) {
        self.constant.push(self.range(&i.len));
        visit::visit_type_array(self, i);
    }
    fn visit_variant(&mut self, i: &'ast syn::Variant) {
        self.constant.push(self.range(i));
        visit::visit_variant(self, i);
    }
    fn visit_expr_binary(&mut self, i: &'ast syn::ExprBinary) {
        if matches!(i.op, BinOp::And(_)) && (has_let(&i.left) || has_let(&i.right)) {
            self.chains.insert(self.range(&i.op).start);
        } else {
            let operation =
                Operation { whole: self.range(i), left: self.range(&i.left), right: self.range(&i.right) };
            self.binary.insert(self.range(&i.op).start, operation);
        }
        visit::visit_expr_binary(self, i);
    }
    fn visit_expr_unary(&mut self, i: &'ast syn::ExprUnary) {
        let found = (self.range(i), self.range(&i.expr));
        self.unary.insert(self.range(&i.op).start, found);
        visit::visit_expr_unary(self, i);
    }
    fn visit_expr_match(&mut self, i: &'ast syn::ExprMatch) {
        // An arm with a guard counts for nothing where all have to be covered.
        if i.arms.iter().any(|arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none()) {
            for arm in &i.arms {
                self.arms.insert(self.range(arm).start, self.range(&arm.pat).end);
            }
        }
        visit::visit_expr_match(self, i);
    }
    fn visit_arm(&mut self, i: &'ast syn::Arm) {
        if let Some((_, guard)) = &i.guard {
            self.guards.insert(self.range(guard).start, has_let(guard));
        }
        visit::visit_arm(self, i);
    }
    fn visit_expr_struct(&mut self, i: &'ast syn::ExprStruct) {
        for field in &i.fields {
            self.fields.insert(self.range(field).start, self.range(i));
        }
        visit::visit_expr_struct(self, i);
    }
}

/// Whether an expression is a chain with `let`, which stands in conditions only.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}

struct Writer<'a> {
    source: &'a str,
    places: &'a [(Place, Alternatives)],
    /// The next of them.
    at: usize,
    next: &'a mut u32,
    out: &'a mut Instrumented,
}

impl Writer<'_> {
    /// Writes a piece of the source with the places in it.
    fn write(&mut self, range: Range<usize>) {
        let mut from = range.start;
        while let Some((place, alternatives)) =
            self.places.get(self.at).filter(|(place, _)| place.start < range.end)
        {
            self.out.text.push_str(&self.source[from..place.start]);
            from = place.start;
            self.at += 1;
            let first = *self.next;
            for (at, &(mutant, _)) in alternatives.iter().enumerate() {
                self.out.numbers.push(Number { mutant, number: first + at as u32, place: first });
            }
            *self.next += alternatives.len() as u32;
            let count = alternatives.len();
            let (spot, begun) = (self.out.spots.len(), self.out.text.len());
            self.out
                .spots
                .push(Spot { range: 0..0, mutants: alternatives.iter().map(|(m, _)| *m).collect() });
            match place.kind {
                Kind::Return => {
                    self.out.text.push_str(&format!("match ::mutant_rt::of({first}, {count}) {{ "));
                    for (at, (mutant, text)) in alternatives.iter().enumerate() {
                        self.alternative(*mutant, &format!("{at} => return ({text}), "));
                    }
                    self.out.text.push_str("_ => {} } ");
                }
                Kind::Arm => self.out.text.push_str(&format!(" if ::mutant_rt::not({first})")),
                Kind::Guard => self.out.text.push_str(&format!("::mutant_rt::not({first}) && ")),
                Kind::Around => {
                    self.out
                        .text
                        .push_str(&format!("(match ::mutant_rt::of({first}, {count}) {{ 4294967295 => "));
                    from = place.minus_end.unsigned_abs();
                    self.write(place.start..from);
                    for (at, (mutant, text)) in alternatives.iter().enumerate() {
                        let at = if at + 1 == count { "_".to_owned() } else { at.to_string() };
                        self.alternative(*mutant, &format!(", {at} => {text}"));
                    }
                    self.out.text.push_str(" })");
                }
            }
            self.out.spots[spot].range = begun..self.out.text.len();
        }
        self.out.text.push_str(&self.source[from..range.end]);
    }

    fn alternative(&mut self, mutant: usize, text: &str) {
        let begun = self.out.text.len();
        self.out.text.push_str(text);
        self.out.spots.push(Spot { range: begun..self.out.text.len(), mutants: vec![mutant] });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with all mutants of a genre at these pieces of it.
    fn written(text: &str, genre: &str, at: &[(&str, &str)]) -> Instrumented {
        let mutants: Vec<Mutant> = at.iter().map(|(piece, new)| mutant(text, genre, piece, new)).collect();
        let mutants: Vec<_> = mutants.iter().enumerate().collect();
        instrument(text, &mutants, &HashSet::new(), &mut 0).expect("it is Rust")
    }

    /// Of files of one line.
    fn mutant(text: &str, genre: &str, piece: &str, new: &str) -> Mutant {
        let start = text.find(piece).expect("it is there") + 1;
        let end = start + piece.len();
        let span =
            serde_json::json!({"start": {"line": 1, "column": start}, "end": {"line": 1, "column": end}});
        let function = serde_json::json!({"return_type": ""});
        let all = serde_json::json!({"name": "", "file": "", "function": function, "span": span,
            "replacement": new, "genre": genre});
        serde_json::from_value(all).expect("a mutant")
    }

    #[test]
    fn an_operator_is_asked_for_and_its_operands_have_mutants_in_the_original_only() {
        let out =
            written("fn f() -> u8 { a + b * c }", "BinaryOperator", &[("+", "-"), ("*", "/"), ("*", "+")]);
        let product = "(match ::mutant_rt::of(1, 2) { 4294967295 => b * c, 0 => (b) / (c), _ => (b) + (c) })";
        let sum =
            format!("(match ::mutant_rt::of(0, 1) {{ 4294967295 => a + {product}, _ => (a) - (b * c) }})");
        assert_eq!(out.text, format!("fn f() -> u8 {{ {sum} }}"));
        let numbers: Vec<_> = out.numbers.iter().map(|n| (n.mutant, n.number, n.place)).collect();
        assert_eq!(numbers, [(0, 0, 0), (1, 1, 1), (2, 2, 1)]);
        assert!(syn::parse_file(&out.text).is_ok());
    }

    #[test]
    fn a_chain_with_let_stays_one() {
        let text = "fn f() { if let Some(a) = b && a == c { d() } }";
        let out = written(text, "BinaryOperator", &[("&&", "||"), ("==", "!=")]);
        let equal = "(match ::mutant_rt::of(0, 1) { 4294967295 => a == c, _ => (a) != (c) })";
        assert_eq!(out.text, text.replace("a == c", equal));
        assert_eq!((out.left.as_slice(), out.unviable.as_slice()), ([].as_slice(), [0].as_slice()));
    }

    #[test]
    fn an_arm_is_left_out_by_its_guard() {
        let text = "fn f() { match a { 1 | 2 => b(), 3 if !c => d(), _ => e() } }";
        let out = written(text, "MatchArm", &[("1 | 2 => b(),", "")]);
        assert_eq!(out.text, text.replace("1 | 2", "1 | 2 if ::mutant_rt::not(0)"));
        let out = written(text, "MatchArmGuard", &[("!c", "true"), ("!c", "false")]);
        let guard = "(match ::mutant_rt::of(0, 2) { 4294967295 => !c, 0 => true, _ => false })";
        assert_eq!(out.text, text.replace("!c", guard));
        let text = "fn f() { match a { 1 => b(), 2 => c(), _ if d => e(), 3.. => g() } }";
        let out = written(text, "MatchArm", &[("2 => c(),", "")]);
        assert_eq!((out.text.as_str(), out.left.as_slice()), (text, [0].as_slice()));
    }

    #[test]
    fn a_value_is_returned_before_the_body_and_an_impl_is_left() {
        let text = "fn f() -> u8 { a() }";
        let out = written(text, "FnValue", &[("a()", "0"), ("a()", "1")]);
        let ask = "match ::mutant_rt::of(0, 2) { 0 => return (0), 1 => return (1), _ => {} } ";
        assert_eq!(out.text, format!("fn f() -> u8 {{ {ask}a() }}"));
        let mut of_impl = mutant(text, "FnValue", "a()", "empty()");
        of_impl.function.as_mut().expect("a function").return_type = "-> impl Iterator".to_owned();
        let out = instrument(text, &[(7, &of_impl)], &HashSet::new(), &mut 0).expect("it is Rust");
        assert_eq!((out.text.as_str(), out.left.as_slice()), (text, [7].as_slice()));
    }

    #[test]
    fn a_field_is_left_to_the_rest_and_a_not_is_left_out() {
        let text = "fn f() -> S { S { a: !b, ..c } }";
        let out = written(text, "StructField", &[("a: !b,", "")]);
        let ask = "(match ::mutant_rt::of(0, 1) { 4294967295 => S { a: !b, ..c }, _ => S {  ..c } })";
        assert_eq!(out.text, format!("fn f() -> S {{ {ask} }}"));
        let out = written(text, "UnaryOperator", &[("!", "")]);
        assert_eq!(
            out.text,
            text.replace("!b", "(match ::mutant_rt::of(0, 1) { 4294967295 => !b, _ => b })")
        );
    }

    #[test]
    fn what_does_not_compile_is_not_written_and_an_error_is_in_its_alternative() {
        let text = "fn f() -> u8 { a + b }";
        let mutants = [mutant(text, "BinaryOperator", "+", "-"), mutant(text, "BinaryOperator", "+", "*")];
        let mutants: Vec<_> = mutants.iter().enumerate().collect();
        let out = instrument(text, &mutants, &HashSet::new(), &mut 5).expect("it is Rust");
        let at = out.text.find("(a) * (b)").expect("the second");
        let smallest =
            out.spots.iter().filter(|spot| spot.range.contains(&at)).min_by_key(|spot| spot.range.len());
        assert_eq!(smallest.expect("a spot").mutants, [1]);
        let out = instrument(text, &mutants, &HashSet::from([0, 1]), &mut 5).expect("it is Rust");
        assert_eq!(out.text, text);
    }

    #[test]
    fn what_the_compiler_evaluates_is_told() {
        let text = "const A: u8 = 1 + 2; fn f() -> u8 { 3 - 4 } const fn g() -> u8 { 5 * 6 }";
        let out = written(text, "BinaryOperator", &[("+", "-"), ("-", "+"), ("*", "/")]);
        // The minus that is found first is the one of an arrow.
        assert_eq!((out.constant.as_slice(), out.left.as_slice()), ([0, 2].as_slice(), [1].as_slice()));
    }
}
