//! The text of a scenario: the entries that a target posts, and the messages that arrive.

use std::collections::BTreeSet;

use thiserror::Error;

/// Statements of a scenario, at most: it is a picture, not a load.
const MAX_STATEMENTS: usize = 4096;
/// Bytes of an entry or a message, at most.
const MAX_BYTES: u64 = 64 << 20;
/// The default sender.
pub(super) const FIRST_SENDER: &str = "a";

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) statements: Vec<Statement>,
}

/// A line that does something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) line: usize,
    /// As it was written.
    pub(super) text: String,
    pub(super) what: What,
}

/// The statement's action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Sender { name: String, uid: Option<u32> },
    Portal { index: u32, options: Vec<PortalOption>, events: u32 },
    Post(Post),
    Unlink { name: String },
    Enable { index: u32 },
    Disable { index: u32 },
    Message(Message),
}

/// An option of a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortalOption {
    FlowControl,
    OnlyUseOnce,
    OnlyTruncate,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Post {
    pub(super) name: String,
    pub(super) portal: u32,
    pub(super) overflow: bool,
    pub(super) bits: u64,
    pub(super) ignore: u64,
    pub(super) from: From,
    pub(super) uid: Option<u32>,
    pub(super) length: u64,
    pub(super) min_free: u64,
    pub(super) options: Vec<EntryOption>,
}

/// Whose messages an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum From {
    Any,
    Sender(String),
    Numbers(Option<u32>, Option<u32>),
}

/// An option of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryOption {
    Put,
    Get,
    UseOnce,
    ManageLocal,
    MayAlign,
    NoTruncate,
    NoHeader,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) by: String,
    pub(super) portal: u32,
    pub(super) bits: u64,
    pub(super) length: u64,
    pub(super) offset: u64,
    pub(super) expect: Option<Expect>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Get,
    FetchAdd,
}

/// How a message is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    Ok,
    Dropped,
    Disabled,
    Permission,
    Operation,
}

/// The reason why a text is no scenario.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}:{line}: {why}")]
pub(crate) struct ScenarioError {
    /// The scenario, or the file.
    pub(crate) name: String,
    /// The line, from 1 on.
    pub(crate) line: usize,
    /// The fault, and the remedy.
    pub(crate) why: Wrong,
}

/// The fault in a line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Wrong {
    #[error(
        "`{0}` is not a statement: write sender, portal, post, unlink, enable, disable, put, get or fetch-add"
    )]
    Statement(String),
    #[error("`{statement}` needs {what}")]
    Missing { statement: &'static str, what: &'static str },
    #[error("`{statement}` has no argument `{word}`: it takes {takes}")]
    Word { statement: &'static str, word: String, takes: &'static str },
    #[error("`{key}` is given twice")]
    Twice { key: String },
    #[error("`{key}={value}` is not a number{within}: write it as 12, 0x7f or 4K")]
    Number { key: String, value: String, within: String },
    #[error("`{key}={value}` is none of {takes}")]
    Value { key: String, value: String, takes: &'static str },
    #[error("portal {index} does not exist yet: write `portal {index}` before")]
    Portal { index: u32 },
    #[error("portal {index} exists already")]
    PortalTwice { index: u32 },
    #[error("no entry is named `{0}` at this point: `post {0} ...` before")]
    Entry(String),
    #[error("`{0}` is in use: give each sender and entry a different name")]
    NameTwice(String),
    #[error("no sender is named `{0}`: write `sender {0}` before")]
    Sender(String),
    #[error("a fetch-add has 8 bytes, or a multiple of that")]
    Words,
    #[error("a scenario has {MAX_STATEMENTS} statements at most")]
    TooLong,
    #[error("nothing is sent: add a line as `put portal=4 bits=7`")]
    NoMessage,
    #[error("{0}")]
    Refused(String),
}

const PORTAL: &str = "flow-control, only-use-once, only-truncate, events=COUNT";
const POST: &str = "portal=, list=, bits=, ignore=, from=, uid=, length=, min-free=, options=";
const MESSAGE: &str = "portal=, bits=, length=, offset=, by=, expect=";
const LISTS: &str = "priority, overflow";
const EXPECT: &str = "ok, dropped, disabled, permission, operation";
const OPTIONS: &str = "put, get, use-once, manage-local, may-align, no-truncate, no-header";
const FROM: &str = "any, the name of a sender, or NODE:PROCESS as 167772161:17 with * for any";

impl Scenario {
    /// Reads a scenario.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        let mut reader = Reader::new();
        let mut statements = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let bare = line.split('#').next().unwrap_or_default().trim();
            if bare.is_empty() {
                continue;
            }
            let refuse = |why| ScenarioError { name: name.to_owned(), line: at + 1, why };
            let what = reader.statement(bare).map_err(refuse)?;
            statements.push(Statement { line: at + 1, text: bare.to_owned(), what });
            if statements.len() > MAX_STATEMENTS {
                return Err(refuse(Wrong::TooLong));
            }
        }
        if !statements.iter().any(|s| matches!(s.what, What::Message(_))) {
            let line = text.lines().count().max(1);
            return Err(ScenarioError { name: name.to_owned(), line, why: Wrong::NoMessage });
        }
        Ok(Self { name: name.to_owned(), statements })
    }
}

/// What lines above have brought.
struct Reader {
    senders: BTreeSet<String>,
    entries: BTreeSet<String>,
    portals: BTreeSet<u32>,
}

/// The words of a statement behind its first.
struct Words<'a> {
    statement: &'static str,
    takes: &'static str,
    bare: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(statement: &'static str, takes: &'static str, words: &[&'a str]) -> Result<Self, Wrong> {
        let (mut bare, mut pairs) = (Vec::new(), Vec::<(&str, &str)>::new());
        for word in words {
            match word.split_once('=') {
                None => bare.push(*word),
                Some((key, _)) if pairs.iter().any(|(k, _)| *k == key) => {
                    return Err(Wrong::Twice { key: key.to_owned() });
                }
                Some(pair) => pairs.push(pair),
            }
        }
        Ok(Self { statement, takes, bare, pairs })
    }
    /// The first argument, which names the object.
    fn first(&mut self, what: &'static str) -> Result<&'a str, Wrong> {
        match self.bare.is_empty() {
            true => Err(Wrong::Missing { statement: self.statement, what }),
            false => Ok(self.bare.remove(0)),
        }
    }
    fn value(&mut self, key: &str) -> Option<&'a str> {
        let at = self.pairs.iter().position(|(k, _)| *k == key)?;
        Some(self.pairs.remove(at).1)
    }
    fn number(&mut self, key: &'static str, max: u64) -> Result<Option<u64>, Wrong> {
        self.value(key).map(|value| number(key, value, max)).transpose()
    }
    /// The required portal.
    fn portal(&mut self, of: &Reader) -> Result<u32, Wrong> {
        let missing = Wrong::Missing { statement: self.statement, what: "portal=INDEX" };
        let index = self.number("portal", u64::from(u32::MAX))?.ok_or(missing)? as u32;
        of.known(index)
    }
    /// One of a few words.
    fn one_of<T: Copy>(
        &mut self,
        key: &str,
        takes: &'static str,
        known: &[(&str, T)],
    ) -> Result<Option<T>, Wrong> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let found = known.iter().find(|(name, _)| *name == value).map(|(_, t)| *t);
        let refused = || Wrong::Value { key: key.to_owned(), value: value.to_owned(), takes };
        found.map(Some).ok_or_else(refused)
    }
    /// Nothing may be left.
    fn end(self) -> Result<(), Wrong> {
        let left = self.bare.first().copied().or(self.pairs.first().map(|(key, _)| *key));
        match left {
            None => Ok(()),
            Some(word) => {
                let (statement, takes) = (self.statement, self.takes);
                Err(Wrong::Word { statement, word: word.to_owned(), takes })
            }
        }
    }
}

fn number(key: &str, value: &str, max: u64) -> Result<u64, Wrong> {
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'K' | b'k') if !value.starts_with("0x") => (&value[..value.len() - 1], 1 << 10),
        Some(b'M' | b'm') if !value.starts_with("0x") => (&value[..value.len() - 1], 1 << 20),
        _ => (value, 1),
    };
    let parsed = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(&hex.replace('_', ""), 16).ok(),
        None => digits.parse().ok(),
    };
    let parsed = parsed.and_then(|n: u64| n.checked_mul(unit)).filter(|n| *n <= max);
    let within = if max == u64::MAX { String::new() } else { format!(" up to {max}") };
    parsed.ok_or_else(|| Wrong::Number { key: key.to_owned(), value: value.to_owned(), within })
}

impl Reader {
    fn new() -> Self {
        Self {
            senders: BTreeSet::from([FIRST_SENDER.to_owned()]),
            entries: BTreeSet::new(),
            portals: BTreeSet::new(),
        }
    }
    fn known(&self, index: u32) -> Result<u32, Wrong> {
        if self.portals.contains(&index) { Ok(index) } else { Err(Wrong::Portal { index }) }
    }
    fn new_name(&self, name: &str) -> Result<String, Wrong> {
        let taken = self.senders.contains(name) || self.entries.contains(name);
        if taken { Err(Wrong::NameTwice(name.to_owned())) } else { Ok(name.to_owned()) }
    }
    fn statement(&mut self, line: &str) -> Result<What, Wrong> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (first, rest) = words.split_first().expect("the line is not empty");
        match *first {
            "sender" => self.sender(Words::of("sender", "uid=NUMBER", rest)?),
            "portal" => self.portal(Words::of("portal", PORTAL, rest)?),
            "post" => self.post(Words::of("post", POST, rest)?),
            "unlink" => self.unlink(Words::of("unlink", "the name of an entry", rest)?),
            "enable" => Ok(What::Enable { index: self.index(Words::of("enable", "a portal", rest)?)? }),
            "disable" => Ok(What::Disable { index: self.index(Words::of("disable", "a portal", rest)?)? }),
            "put" => self.message(Kind::Put, Words::of("put", MESSAGE, rest)?),
            "get" => self.message(Kind::Get, Words::of("get", MESSAGE, rest)?),
            "fetch-add" => self.message(Kind::FetchAdd, Words::of("fetch-add", MESSAGE, rest)?),
            other => Err(Wrong::Statement(other.to_owned())),
        }
    }
    fn sender(&mut self, mut words: Words<'_>) -> Result<What, Wrong> {
        let name = self.new_name(words.first("a name")?)?;
        let uid = words.number("uid", u64::from(u32::MAX))?.map(|uid| uid as u32);
        words.end()?;
        self.senders.insert(name.clone());
        Ok(What::Sender { name, uid })
    }
    fn portal(&mut self, mut words: Words<'_>) -> Result<What, Wrong> {
        let index = number("portal", words.first("an index")?, u64::from(u32::MAX))? as u32;
        let events = words.number("events", 1 << 16)?.unwrap_or(1024) as u32;
        let mut options = Vec::new();
        for word in std::mem::take(&mut words.bare) {
            options.push(match word {
                "flow-control" => PortalOption::FlowControl,
                "only-use-once" => PortalOption::OnlyUseOnce,
                "only-truncate" => PortalOption::OnlyTruncate,
                _ => return Err(Wrong::Word { statement: "portal", word: word.to_owned(), takes: PORTAL }),
            });
        }
        words.end()?;
        if !self.portals.insert(index) {
            return Err(Wrong::PortalTwice { index });
        }
        Ok(What::Portal { index, options, events })
    }
    fn post(&mut self, mut words: Words<'_>) -> Result<What, Wrong> {
        let name = self.new_name(words.first("a name for the entry")?)?;
        let portal = words.portal(self)?;
        let overflow = words.one_of("list", LISTS, &[("priority", false), ("overflow", true)])?;
        let post = Post {
            name,
            portal,
            overflow: overflow.unwrap_or(false),
            bits: words.number("bits", u64::MAX)?.unwrap_or(0),
            ignore: words.number("ignore", u64::MAX)?.unwrap_or(0),
            from: words.value("from").map_or(Ok(From::Any), |from| self.from(from))?,
            uid: words.number("uid", u64::from(u32::MAX))?.map(|uid| uid as u32),
            length: words.number("length", MAX_BYTES)?.unwrap_or(64),
            min_free: words.number("min-free", MAX_BYTES)?.unwrap_or(0),
            options: entry_options(words.value("options").unwrap_or("put,get"))?,
        };
        words.end()?;
        self.entries.insert(post.name.clone());
        Ok(What::Post(post))
    }
    fn from(&self, from: &str) -> Result<From, Wrong> {
        let refused = || Wrong::Value { key: "from".to_owned(), value: from.to_owned(), takes: FROM };
        let part = |text: &str| match text {
            "*" => Ok(None),
            text => text.parse().map(Some).map_err(|_| refused()),
        };
        match from.split_once(':') {
            Some((nid, pid)) => Ok(From::Numbers(part(nid)?, part(pid)?)),
            None if from == "any" => Ok(From::Any),
            None => Ok(From::Sender(self.known_sender(from)?)),
        }
    }
    fn known_sender(&self, name: &str) -> Result<String, Wrong> {
        let known = self.senders.get(name).cloned();
        known.ok_or_else(|| Wrong::Sender(name.to_owned()))
    }
    fn unlink(&mut self, mut words: Words<'_>) -> Result<What, Wrong> {
        let name = words.first("the name of an entry")?;
        words.end()?;
        let known = self.entries.get(name).cloned();
        known.map(|name| What::Unlink { name }).ok_or_else(|| Wrong::Entry(name.to_owned()))
    }
    fn index(&mut self, mut words: Words<'_>) -> Result<u32, Wrong> {
        let index = number("portal", words.first("the index of a portal")?, u64::from(u32::MAX))?;
        words.end()?;
        self.known(index as u32)
    }
    fn message(&mut self, kind: Kind, mut words: Words<'_>) -> Result<What, Wrong> {
        // A message may name a portal that does not exist, as the trace explains why no entry takes it.
        let missing = Wrong::Missing { statement: words.statement, what: "portal=INDEX" };
        let portal = words.number("portal", 255)?.ok_or(missing)? as u32;
        let known = [
            ("ok", Expect::Ok),
            ("dropped", Expect::Dropped),
            ("disabled", Expect::Disabled),
            ("permission", Expect::Permission),
            ("operation", Expect::Operation),
        ];
        let message = Message {
            kind,
            by: self.known_sender(words.value("by").unwrap_or(FIRST_SENDER))?,
            portal,
            bits: words.number("bits", u64::MAX)?.unwrap_or(0),
            length: words.number("length", MAX_BYTES)?.unwrap_or(8),
            offset: words.number("offset", u64::MAX)?.unwrap_or(0),
            expect: words.one_of("expect", EXPECT, &known)?,
        };
        words.end()?;
        if kind == Kind::FetchAdd && (message.length == 0 || !message.length.is_multiple_of(8)) {
            return Err(Wrong::Words);
        }
        Ok(What::Message(message))
    }
}

fn entry_options(value: &str) -> Result<Vec<EntryOption>, Wrong> {
    let option = |word: &str| {
        Ok(match word {
            "put" => EntryOption::Put,
            "get" => EntryOption::Get,
            "use-once" => EntryOption::UseOnce,
            "manage-local" => EntryOption::ManageLocal,
            "may-align" => EntryOption::MayAlign,
            "no-truncate" => EntryOption::NoTruncate,
            "no-header" => EntryOption::NoHeader,
            _ => {
                let (key, value) = ("options".to_owned(), word.to_owned());
                return Err(Wrong::Value { key, value, takes: OPTIONS });
            }
        })
    };
    value.split(',').map(option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        Scenario::parse("x", text).unwrap_err().to_string()
    }

    #[test]
    fn a_scenario_is_read() {
        let text = "portal 4 flow-control events=2 # why\n\npost a1 portal=4 bits=0xff ignore=0x0f from=a \
             options=put,use-once length=4K\nput portal=4 bits=0xf3 expect=ok";
        let scenario = Scenario::parse("x", text).unwrap();
        let lines: Vec<_> = scenario.statements.iter().map(|s| s.line).collect();
        assert_eq!(lines, [1, 3, 4]);
        let What::Post(post) = &scenario.statements[1].what else { panic!("{scenario:?}") };
        assert_eq!((post.bits, post.ignore, post.length), (0xff, 0x0f, 4096));
        assert_eq!(post.from, From::Sender("a".into()));
        assert_eq!(post.options, [EntryOption::Put, EntryOption::UseOnce]);
        let What::Message(message) = &scenario.statements[2].what else { panic!("{scenario:?}") };
        assert_eq!((message.bits, message.length, message.expect), (0xf3, 8, Some(Expect::Ok)));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_to_write() {
        let portal = |line: &str| wrong(&format!("portal 4\n{line}"));
        for (said, parts) in [
            (wrong("portal 4\n\nfly\n"), &["x:3: ", "`fly`", "fetch-add"][..]),
            (wrong("post e portal=4"), &["x:1: ", "write `portal 4`"]),
            (wrong("portal 4\nportal 4"), &["x:2: ", "already"]),
            (wrong("portal x"), &["x:1: ", "`portal=x`", "0x7f"]),
            (wrong("portal 4 slow"), &["`slow`", "flow-control"]),
            (portal("post"), &["x:2: ", "a name"]),
            (portal("post e"), &["portal=INDEX"]),
            (portal("post e portal=4 bit=7"), &["`bit`", "bits="]),
            (portal("post e portal=4 bits=7 bits=8"), &["`bits`", "twice"]),
            (portal("post e portal=4 bits=0xg"), &["`bits=0xg`", "number"]),
            (portal("post e portal=4 list=first"), &["`list=first`", "overflow"]),
            (portal("post e portal=4 options=fast"), &["`options=fast`", "use-once"]),
            (portal("post e portal=4 length=1G"), &["`length=1G`", "67108864"]),
            (portal("post e portal=4 from=bob"), &["`bob`", "sender bob"]),
            (portal("post e portal=4 from=1:y"), &["`from=1:y`", "NODE:PROCESS"]),
            (portal("post e portal=4\npost e portal=4"), &["x:3: ", "`e`", "different name"]),
            (portal("sender a"), &["`a`", "different name"]),
            (portal("unlink e"), &["`e`", "post e"]),
            (portal("enable 5"), &["`portal 5`"]),
            (portal("put bits=1"), &["`put`", "portal=INDEX"]),
            (portal("put portal=4 by=b"), &["`b`", "sender b"]),
            (portal("put portal=4 expect=good"), &["`expect=good`", "permission"]),
            (portal("fetch-add portal=4 length=12"), &["8 bytes"]),
            (portal(""), &["nothing is sent", "put portal=4"]),
            (wrong(""), &["x:1: ", "nothing is sent"]),
            (wrong(&"portal 4\n".repeat(2)), &["already"]),
        ] {
            for part in parts {
                assert!(said.contains(part), "{said:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_scenario_has_an_end() {
        let text = format!("portal 4\n{}", "enable 4\n".repeat(MAX_STATEMENTS));
        assert!(wrong(&text).contains("4096 statements"));
    }
}
