//! The plan of a run: the request of rlock and the steps of its command. The command gets the plan
//! as text.

use std::time::Duration;

use super::claims::{self, Claim, Mode, Span};

/// A run and the nested runs that its command starts, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) levels: Vec<Level>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) claims: Vec<Claim>,
    /// The `--wait` of the request; none without a limit.
    pub(crate) wait_limit: Option<Duration>,
    /// Whether the request supersedes the others of one job.
    pub(crate) supersedes: bool,
    pub(crate) steps: Vec<Step>,
}

/// A step of a command. Files and registers have the name of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Works for this many milliseconds.
    Work(u64),
    /// Increments the number in a file, and works for this many milliseconds between read and
    /// write.
    Count(String, u64),
    /// Writes to a register that refuses a token below the highest one.
    Register(String),
    /// Shrinks the held interval to this one.
    Shrink(String),
    Downgrade(Mode),
    /// Runs the next level as a nested rlock.
    Nest,
}

impl Level {
    pub(crate) fn new(claims: impl Into<Vec<Claim>>, steps: impl Into<Vec<Step>>) -> Self {
        Self { claims: claims.into(), wait_limit: None, supersedes: false, steps: steps.into() }
    }

    /// The arguments of rlock before its command.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = match self.claims.as_slice() {
            [Claim { resource, mode, span, .. }] if *span != Span::WHOLE => {
                let interval = span.text().expect("a span other than the whole is an interval");
                vec![format!("range-{}", mode.name()), resource.clone(), interval.to_owned()]
            }
            claims => {
                let word = |claim: &Claim| match claim.slots {
                    Some(slots) if claim.taken > 1 => format!("{}={slots}:{}", claim.resource, claim.taken),
                    Some(slots) => format!("{}={slots}", claim.resource),
                    None => claim.resource.clone(),
                };
                let options = claims.iter().flat_map(|claim| [format!("--{}", claim.mode.name()), word(claim)]);
                ["exec".to_owned()].into_iter().chain(options).collect()
            }
        };
        if self.supersedes {
            words.extend(["--job", "newest", "--supersede"].map(str::to_owned));
        }
        words.extend(self.wait_limit.map(|wait_limit| format!("--wait={}ms", wait_limit.as_millis())));
        words
    }
}

impl Plan {
    pub(crate) fn single(level: Level) -> Self {
        Self { levels: vec![level] }
    }

    /// The plan of the nested run, if there is one.
    pub(crate) fn inner(&self) -> Option<Self> {
        (self.levels.len() > 1).then(|| Self { levels: self.levels[1..].to_vec() })
    }

    pub(crate) fn to_text(&self) -> String {
        let line = |level: &Level| {
            let wait_limit = level.wait_limit.map_or("-".to_owned(), |wait_limit| wait_limit.as_millis().to_string());
            let steps: Vec<_> = level.steps.iter().map(Step::to_text).collect();
            format!("{} {wait_limit} {} {}", claims::to_text(&level.claims), level.supersedes, steps.join(" "))
        };
        self.levels.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn parse(text: &str) -> Self {
        let level = |line: &str| {
            let mut words = line.split_whitespace();
            Level {
                claims: claims::parse(words.next().expect("a level has claims")),
                wait_limit: words.next().and_then(|wait_limit| wait_limit.parse().ok()).map(Duration::from_millis),
                supersedes: words.next() == Some("true"),
                steps: words.map(Step::parse).collect(),
            }
        };
        Self { levels: text.lines().map(level).collect() }
    }
}

impl Step {
    fn to_text(&self) -> String {
        match self {
            Self::Work(millis) => format!("work={millis}"),
            Self::Count(name, millis) => format!("count={name}={millis}"),
            Self::Register(name) => format!("register={name}"),
            Self::Shrink(interval) => format!("shrink={interval}"),
            Self::Downgrade(mode) => format!("downgrade={}", mode.name()),
            Self::Nest => "nest".to_owned(),
        }
    }

    fn parse(word: &str) -> Self {
        match *word.split('=').collect::<Vec<_>>().as_slice() {
            ["work", millis] => Self::Work(millis.parse().expect("the time is a number")),
            ["count", name, millis] => Self::Count(name.to_owned(), millis.parse().expect("the time is a number")),
            ["register", name] => Self::Register(name.to_owned()),
            ["shrink", interval] => Self::Shrink(interval.to_owned()),
            ["downgrade", name] => {
                Self::Downgrade(Mode::ALL.into_iter().find(|mode| mode.name() == name).expect("the mode exists"))
            }
            ["nest"] => Self::Nest,
            _ => panic!("unknown step '{word}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_survives_a_round_trip_through_text() {
        let steps = [
            Step::Work(3),
            Step::Count("k".into(), 4),
            Step::Register("k".into()),
            Step::Shrink("[1,2)".into()),
            Step::Downgrade(Mode::Read),
            Step::Nest,
        ];
        let mut outer = Level::new([Claim::part("axis", Mode::Prewrite, "[0,9]")], steps);
        outer.wait_limit = Some(Duration::from_millis(250));
        let mut inner = Level::new([Claim::whole("a", Mode::Write), Claim::slot("s", 2)], []);
        inner.supersedes = true;
        let plan = Plan { levels: vec![outer, inner] };
        assert_eq!(Plan::parse(&plan.to_text()), plan);
        assert_eq!(plan.inner().map(|inner| inner.levels.len()), Some(1));
        assert_eq!(plan.levels[0].words(), ["range-prewrite", "axis", "[0,9]", "--wait=250ms"]);
        assert_eq!(plan.levels[1].words(), ["exec", "--write", "a", "--slot", "s=2", "--job", "newest", "--supersede"]);
    }
}
