//! Who is meant: the match expressions of throttling rules and weights, in Lustre's rule syntax.
//!
//! `uid={500 501}&opcode={ost_write},jobid={dd.0}` reads: (uid is 500 or 501, and it is a write) or (the job is dd.0).
//! Fields are `client`, `uid`, `jobid`, `opcode`; `*` stands for all values, `10-20` for a range of numbers.
//!
//! Differs from Lustre: `client` takes the place of `nid`, because a client keeps its id over all its connections; job
//! names match whole (a request carries a hash of the name); `bytes=` and `depth=` are ours.
use crate::{IoOp, JobId, NrsRequest};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;
use types::{format_size, parse_size};

/// Most rules that a list takes: every request walks the list once.
pub const RULES_MAX: usize = 1024;
/// Requests per second of requests that match no rule, until `change default` says otherwise. As in Lustre.
pub const DEFAULT_RATE: u32 = 10_000;
/// Requests that a bucket saves up while idle. As in Lustre.
pub const DEFAULT_DEPTH: u32 = 3;
const RATE_MAX: u32 = 1_000_000;
const NAME_BYTES_MAX: usize = 64;

/// A property of requests that rules name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Client,
    Uid,
    Job,
    Opcode,
}

impl Field {
    const ALL: [(Field, &'static str); 4] =
        [(Field::Client, "client"), (Field::Uid, "uid"), (Field::Job, "jobid"), (Field::Opcode, "opcode")];

    fn of(self, req: &NrsRequest) -> u64 {
        match self {
            Field::Client => req.client.0,
            Field::Uid => u64::from(req.uid),
            Field::Job => req.job.0,
            Field::Opcode => req.op as u64,
        }
    }
    fn parse_value(self, text: &str) -> Result<(u64, u64), String> {
        if text == "*" {
            return Ok((0, u64::MAX));
        }
        let number = |t: &str| t.parse::<u64>().map_err(|_| format!("'{t}' is not a number"));
        match self {
            Field::Job if text.contains(['*', '?']) => {
                Err(format!("'{text}': job names match whole; write the full name, or * for every job"))
            }
            Field::Job => Ok((JobId::of(text).0, JobId::of(text).0)),
            Field::Opcode => {
                let op = IoOp::parse(text)
                    .ok_or_else(|| format!("'{text}' is not one of ost_read, ost_write, ost_punch, ost_sync"))?;
                Ok((op as u64, op as u64))
            }
            Field::Client | Field::Uid => {
                let text = text.strip_prefix("client").unwrap_or(text);
                let (low, high) = text.split_once('-').unwrap_or((text, text));
                let (low, high) = (number(low)?, number(high)?);
                if low > high {
                    return Err(format!("the range '{text}' is empty"));
                }
                Ok((low, high))
            }
        }
    }
}

/// Which fields an expression names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) client: bool,
    pub(crate) uid: bool,
    pub(crate) job: bool,
    pub(crate) op: bool,
}

#[derive(Clone, PartialEq, Debug)]
struct Condition {
    field: Field,
    /// Closed ranges of accepted values.
    values: Vec<(u64, u64)>,
}

/// A match expression: any of its conjunctions must hold.
#[derive(Clone, PartialEq, Debug)]
pub struct Expr {
    any: Vec<Vec<Condition>>,
    text: String,
}

impl Expr {
    /// Parses `field={values}&field={values},..`; `*` alone matches everything.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn parse(text: &str) -> Result<Expr, String> {
        // One line, however it was typed.
        let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text == "*" || text == "{*}" {
            return Ok(Expr { any: alloc::vec![Vec::new()], text: "*".to_string() });
        }
        let any: Result<Vec<_>, String> = text.split(',').map(Self::parse_all).collect();
        Ok(Expr { any: any?, text: text.to_string() })
    }
    fn parse_all(text: &str) -> Result<Vec<Condition>, String> {
        text.split('&').map(|part| Self::parse_condition(part.trim())).collect()
    }
    fn parse_condition(text: &str) -> Result<Condition, String> {
        let bad = || format!("'{text}' is not a condition; write field={{values}}, like uid={{500 501}}");
        let (name, rest) = text.split_once('=').ok_or_else(bad)?;
        let inner = rest.trim().strip_prefix('{').and_then(|r| r.strip_suffix('}')).ok_or_else(bad)?;
        let Some((field, _)) = Field::ALL.into_iter().find(|f| f.1 == name.trim()) else {
            return Err(format!("'{}' is not a field; the fields are client, uid, jobid, opcode", name.trim()));
        };
        let values: Result<Vec<_>, String> = inner.split_whitespace().map(|v| field.parse_value(v)).collect();
        let values = values?;
        if values.is_empty() { Err(bad()) } else { Ok(Condition { field, values }) }
    }
    /// Whether `req` is meant.
    #[must_use]
    pub fn matches(&self, req: &NrsRequest) -> bool {
        let holds = |c: &Condition| {
            let value = c.field.of(req);
            c.values.iter().any(|(low, high)| (*low..=*high).contains(&value))
        };
        self.any.iter().any(|all| all.iter().all(holds))
    }
    /// The fields that it names: requests that agree in them share a bucket.
    pub(crate) fn named(&self) -> Named {
        let names = |field| self.any.iter().flatten().any(|c| c.field == field);
        let (uid, job, op) = (names(Field::Uid), names(Field::Job), names(Field::Opcode));
        // A rule for everybody still keeps one bucket per client.
        Named { client: names(Field::Client) || !(uid || job || op), uid, job, op }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A throttling rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Name, unique in its list.
    pub name: String,
    /// Whom it throttles.
    pub when: Expr,
    /// Requests per second and bucket; 1..=1000000, `None` = not limited.
    pub rate: Option<u32>,
    /// Bytes per second and bucket; `None` = not limited.
    pub bytes_per_s: Option<u64>,
    /// Requests (and as many times 1 MiB, when bytes are limited) that an idle bucket saves up. 1..=65535, default 3.
    pub depth: u32,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.when)?;
        if let Some(rate) = self.rate {
            write!(f, " rate={rate}")?;
        }
        if let Some(bytes) = self.bytes_per_s {
            write!(f, " bytes={bytes}")?;
        }
        if self.depth != DEFAULT_DEPTH {
            write!(f, " depth={}", self.depth)?;
        }
        Ok(())
    }
}

/// The throttling rules in the order in which they are tried, the default last.
#[derive(Clone, PartialEq, Debug)]
pub struct TbfRules {
    rules: Vec<Rule>,
}

impl Default for TbfRules {
    fn default() -> Self {
        let when = Expr { any: alloc::vec![Vec::new()], text: "*".to_string() };
        let name = "default".to_string();
        let rule = Rule { name, when, rate: Some(DEFAULT_RATE), bytes_per_s: None, depth: DEFAULT_DEPTH };
        TbfRules { rules: alloc::vec![rule] }
    }
}

/// The words of a command behind the rule's name.
#[derive(Default)]
struct Arguments<'a> {
    when: String,
    rate: Option<u32>,
    bytes_per_s: Option<u64>,
    depth: Option<u32>,
    rank: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    fn parse(text: &'a str) -> Result<Arguments<'a>, String> {
        let mut arguments = Arguments::default();
        for word in text.split_whitespace() {
            if let Some(rate) = word.strip_prefix("rate=") {
                let rate = rate.parse().ok().filter(|r| (1..=RATE_MAX).contains(r));
                arguments.rate = Some(rate.ok_or(format!("'{word}': write rate=1 to rate={RATE_MAX}, in requests/s"))?);
            } else if let Some(bytes) = word.strip_prefix("bytes=") {
                let bytes = parse_size(bytes)?;
                if bytes == 0 {
                    return Err(format!("'{word}': at least 1 byte/s must be left"));
                }
                arguments.bytes_per_s = Some(bytes);
            } else if let Some(depth) = word.strip_prefix("depth=") {
                let depth = depth.parse().ok().filter(|d| (1..=65_535).contains(d));
                arguments.depth = Some(depth.ok_or(format!("'{word}': write depth=1 to depth=65535"))?);
            } else if let Some(rank) = word.strip_prefix("rank=") {
                arguments.rank = Some(rank);
            } else {
                if !arguments.when.is_empty() {
                    arguments.when.push(' ');
                }
                arguments.when.push_str(word);
            }
        }
        Ok(arguments)
    }
}

impl TbfRules {
    /// The rules, first tried first; the last is `default` and matches everything.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
    /// Index of the rule that `req` falls under.
    /// The rule that a request falls under.
    #[must_use]
    pub fn of(&self, req: &NrsRequest) -> &Rule {
        &self.rules[self.find(req)]
    }
    pub(crate) fn find(&self, req: &NrsRequest) -> usize {
        let last = self.rules.len() - 1;
        self.rules[..last].iter().position(|r| r.when.matches(req)).unwrap_or(last)
    }

    /// Carries out one command: `start NAME EXPR rate=N [bytes=SIZE] [depth=N] [rank=RULE]`, `change NAME [rate=N]
    /// [bytes=SIZE] [depth=N] [rank=RULE]` or `stop NAME`. A started rule is tried before all others, or right before
    /// the rule that `rank` names.
    ///
    /// # Errors
    /// A sentence that says what is wrong; the rules are then unchanged.
    pub fn apply(&mut self, command: &str) -> Result<(), String> {
        let mut words = command.trim().splitn(3, char::is_whitespace);
        let (verb, name, rest) = (words.next().unwrap_or(""), words.next().unwrap_or(""), words.next().unwrap_or(""));
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(legal) {
            return Err(format!("'{name}' is not a rule name: 1 to {NAME_BYTES_MAX} letters, digits and '_'"));
        }
        let arguments = Arguments::parse(rest)?;
        match verb {
            "start" => self.start(name, &arguments),
            "change" => self.change(name, &arguments),
            "stop" => self.stop(name, &arguments),
            _ => Err(format!("'{verb}' is not a command; write start, change or stop")),
        }
    }

    fn index_of(&self, name: &str) -> Result<usize, String> {
        self.rules.iter().position(|r| r.name == name).ok_or_else(|| format!("there is no rule '{name}'"))
    }

    fn start(&mut self, name: &str, arguments: &Arguments<'_>) -> Result<(), String> {
        if self.rules.iter().any(|r| r.name == name) {
            return Err(format!("rule '{name}' exists; stop it first, or change it"));
        }
        if self.rules.len() > RULES_MAX {
            return Err(format!("there are {RULES_MAX} rules already; stop one first"));
        }
        if arguments.rate.is_none() && arguments.bytes_per_s.is_none() {
            return Err("a rule needs rate= or bytes=".to_string());
        }
        let rule = Rule {
            name: name.to_string(),
            when: Expr::parse(&arguments.when)?,
            rate: arguments.rate,
            bytes_per_s: arguments.bytes_per_s,
            depth: arguments.depth.unwrap_or(DEFAULT_DEPTH),
        };
        let at = arguments.rank.map_or(Ok(0), |rank| self.index_of(rank))?;
        self.rules.insert(at, rule);
        Ok(())
    }

    fn change(&mut self, name: &str, arguments: &Arguments<'_>) -> Result<(), String> {
        let at = self.index_of(name)?;
        if !arguments.when.is_empty() {
            return Err(format!("'{}': a rule's condition cannot change; stop it and start another", arguments.when));
        }
        if let Some(rank) = arguments.rank {
            if name == "default" || rank == name {
                return Err(format!("rule '{name}' cannot be ranked before '{rank}'"));
            }
            self.index_of(rank)?;
        }
        let rule = &mut self.rules[at];
        rule.rate = arguments.rate.or(rule.rate);
        rule.bytes_per_s = arguments.bytes_per_s.or(rule.bytes_per_s);
        rule.depth = arguments.depth.unwrap_or(rule.depth);
        if let Some(rank) = arguments.rank {
            let rule = self.rules.remove(at);
            let before = self.index_of(rank)?;
            self.rules.insert(before, rule);
        }
        Ok(())
    }

    fn stop(&mut self, name: &str, arguments: &Arguments<'_>) -> Result<(), String> {
        let at = self.index_of(name)?;
        if name == "default" {
            return Err("the default rule cannot be stopped; change its rate".to_string());
        }
        if !arguments.when.is_empty() {
            return Err(format!("'{}': stop takes a rule name only", arguments.when));
        }
        self.rules.remove(at);
        Ok(())
    }

    /// Commands, separated by `;`, that build these rules from the default.
    #[must_use]
    pub fn to_commands(&self) -> String {
        let (default, rules) = self.rules.split_last().expect("the default rule is always there");
        let mut commands: Vec<String> = rules.iter().rev().map(|r| format!("start {r}")).collect();
        if default != &TbfRules::default().rules[0] {
            commands.push(format!("change {}", default.to_string().replacen(" *", "", 1)));
        }
        commands.join("; ")
    }
    /// Equal for equal rules.
    pub(crate) fn hash(&self) -> u64 {
        JobId::of(&self.to_commands()).0
    }
    /// Carries out commands separated by `;`.
    ///
    /// # Errors
    /// As [`TbfRules::apply`], for the first command that fails; the rules are then unchanged.
    pub fn apply_all(&mut self, commands: &str) -> Result<(), String> {
        let mut rules = self.clone();
        for command in commands.split(';').filter(|c| !c.trim().is_empty()) {
            rules.apply(command)?;
        }
        *self = rules;
        Ok(())
    }
    /// The list as `get_param` shows it: one rule a line, `name condition rate, bytes/s, ref requests`.
    #[must_use]
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let rate = rule.rate.map_or("unlimited".to_string(), |r| r.to_string());
            let bytes = rule.bytes_per_s.map_or(String::new(), |b| format!(", {}/s", format_size(b)));
            text.push_str(&format!("{} {} {rate}{bytes}, ref 0\n", rule.name, rule.when));
        }
        text
    }
}

/// Shares of objects: the first rule that matches an object's newest request counts; without one the weight is 1.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Weights {
    rules: Vec<(Expr, u32)>,
}

impl Weights {
    /// Parses `EXPR WEIGHT; EXPR WEIGHT`, with weights of 1..=1000.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Weights, String> {
        let mut rules = Vec::new();
        for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            let (expr, weight) = part.rsplit_once(char::is_whitespace).ok_or(format!("'{part}' has no weight"))?;
            let weight: Option<u32> = weight.parse().ok().filter(|w| (1..=1000).contains(w));
            rules.push((Expr::parse(expr)?, weight.ok_or(format!("'{part}': a weight is a number from 1 to 1000"))?));
        }
        if rules.len() > RULES_MAX {
            return Err(format!("{} weights are more than {RULES_MAX}", rules.len()));
        }
        Ok(Weights { rules })
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
    /// The weight of the object of `req`.
    #[must_use]
    pub fn of(&self, req: &NrsRequest) -> u32 {
        self.rules.iter().find(|r| r.0.matches(req)).map_or(1, |r| r.1)
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (expr, weight)) in self.rules.iter().enumerate() {
            write!(f, "{}{expr} {weight}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}
