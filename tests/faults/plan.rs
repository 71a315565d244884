//! What a run does: how rlock is asked, and the steps of the command that it then runs. A plan goes to that command in words.

use std::time::Duration;

use super::claims::{self, Claim, Mode, Span};

/// One run, and those that its command starts inside it, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) levels: Vec<Level>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) claims: Vec<Claim>,
    /// How long to wait at most; none for as long as it takes.
    pub(crate) patience: Option<Duration>,
    pub(crate) steps: Vec<Step>,
}

/// What a command does. Whatever it works on is named after a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many milliseconds.
    Work(u64),
    /// Reads the number in a file, works for so many milliseconds, and writes one more.
    Count(String, u64),
    /// Writes to a register that checks the token.
    Register(String),
    /// Gives up the part of the interval outside this one.
    Shrink(String),
    /// Lowers the mode.
    Downgrade(Mode),
    /// Runs the next level inside this one.
    Nest,
}

impl Level {
    pub(crate) fn new(claims: impl Into<Vec<Claim>>, steps: impl Into<Vec<Step>>) -> Self {
        Self { claims: claims.into(), patience: None, steps: steps.into() }
    }

    /// The words of rlock up to the command's.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = match self.claims.as_slice() {
            [Claim { resource, mode, span, .. }] if *span != Span::WHOLE => {
                let interval = span.text().expect("what is not the whole is an interval");
                vec![format!("range-{}", mode.name()), resource.clone(), interval.to_owned()]
            }
            claims => {
                let word = |claim: &Claim| match claim.slots {
                    Some(slots) => format!("{}={slots}", claim.resource),
                    None => claim.resource.clone(),
                };
                let options = claims.iter().flat_map(|claim| [format!("--{}", claim.mode.name()), word(claim)]);
                ["exec".to_owned()].into_iter().chain(options).collect()
            }
        };
        words.extend(self.patience.map(|patience| format!("--wait={}ms", patience.as_millis())));
        words
    }
}

impl Plan {
    pub(crate) fn alone(level: Level) -> Self {
        Self { levels: vec![level] }
    }

    /// What is left for the command of the outermost level to run inside.
    pub(crate) fn inner(&self) -> Option<Self> {
        (self.levels.len() > 1).then(|| Self { levels: self.levels[1..].to_vec() })
    }

    pub(crate) fn written(&self) -> String {
        let line = |level: &Level| {
            let patience = level.patience.map_or("-".to_owned(), |patience| patience.as_millis().to_string());
            let steps: Vec<_> = level.steps.iter().map(Step::written).collect();
            format!("{} {patience} {}", claims::written(&level.claims), steps.join(" "))
        };
        self.levels.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn read(text: &str) -> Self {
        let level = |line: &str| {
            let mut words = line.split_whitespace();
            Level {
                claims: claims::read(words.next().expect("claims")),
                patience: words.next().and_then(|patience| patience.parse().ok()).map(Duration::from_millis),
                steps: words.map(Step::read).collect(),
            }
        };
        Self { levels: text.lines().map(level).collect() }
    }
}

impl Step {
    fn written(&self) -> String {
        match self {
            Self::Work(millis) => format!("work={millis}"),
            Self::Count(name, millis) => format!("count={name}={millis}"),
            Self::Register(name) => format!("register={name}"),
            Self::Shrink(interval) => format!("shrink={interval}"),
            Self::Downgrade(mode) => format!("downgrade={}", mode.name()),
            Self::Nest => "nest".to_owned(),
        }
    }

    fn read(word: &str) -> Self {
        match *word.split('=').collect::<Vec<_>>().as_slice() {
            ["work", millis] => Self::Work(millis.parse().expect("a number")),
            ["count", name, millis] => Self::Count(name.to_owned(), millis.parse().expect("a number")),
            ["register", name] => Self::Register(name.to_owned()),
            ["shrink", interval] => Self::Shrink(interval.to_owned()),
            ["downgrade", name] => {
                Self::Downgrade(Mode::ALL.into_iter().find(|mode| mode.name() == name).expect("a mode"))
            }
            ["nest"] => Self::Nest,
            _ => panic!("there is no step '{word}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        let steps = [
            Step::Work(3),
            Step::Count("k".into(), 4),
            Step::Register("k".into()),
            Step::Shrink("[1,2)".into()),
            Step::Downgrade(Mode::Read),
            Step::Nest,
        ];
        let mut outer = Level::new([Claim::part("axis", Mode::Prewrite, "[0,9]")], steps);
        outer.patience = Some(Duration::from_millis(250));
        let inner = Level::new([Claim::whole("a", Mode::Write), Claim::slot("s", 2)], []);
        let plan = Plan { levels: vec![outer, inner] };
        assert_eq!(Plan::read(&plan.written()), plan);
        assert_eq!(plan.inner().map(|inner| inner.levels.len()), Some(1));
        assert_eq!(plan.levels[0].words(), ["range-prewrite", "axis", "[0,9]", "--wait=250ms"]);
        assert_eq!(plan.levels[1].words(), ["exec", "--write", "a", "--slot", "s=2"]);
    }
}
