//! Decides whether a machine has the room that a command needs.

use std::fmt;

/// What a command needs before it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// The free memory, in bytes.
    pub memory: Option<u64>,
    /// The highest load.
    pub load: Option<Load>,
}

/// A limit of the load of the processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// The load average of one minute.
    Average(f64),
    /// The share of the last ten seconds in which some task waited for a processor, in percent.
    Pressure(f64),
}

/// What the machine has; `None` for what the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Room {
    /// The memory that a new process may take, in bytes.
    pub memory: Option<u64>,
    /// The load average of one minute.
    pub average: Option<f64>,
    /// See [`Load::Pressure`].
    pub pressure: Option<f64>,
}

impl Needs {
    /// What a command waits for, in words; `None` if there is room. What the kernel does not tell
    /// is no reason to wait.
    pub(crate) fn missing_in(&self, room: &Room) -> Option<String> {
        if let (Some(needed), Some(free)) = (self.memory, room.memory)
            && free < needed
        {
            return Some(format!("waiting for memory: {} of {} free", size(free), size(needed)));
        }
        let (load, limit, sign) = match self.load? {
            Load::Average(limit) => (room.average?, limit, ""),
            Load::Pressure(limit) => (room.pressure?, limit, "%"),
        };
        (load > limit).then(|| format!("waiting for load: {load:.1}{sign}, at most {limit}{sign}"))
    }

    /// Whether this memory, as that of the whole machine, can never be enough.
    pub fn exceeds(&self, memory: u64) -> bool {
        self.memory.is_some_and(|needed| needed > memory)
    }
}

/// The needs in words: `4G of memory, a load of 8`.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory.map(|needed| format!("{} of memory", size(needed)));
        let load = self.load.map(|load| match load {
            Load::Average(limit) => format!("a load of {limit}"),
            Load::Pressure(limit) => format!("a pressure of {limit}%"),
        });
        f.write_str(&memory.into_iter().chain(load).collect::<Vec<_>>().join(", "))
    }
}

/// A size for people: `2.1G`, `512M`.
pub fn size(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    // Rounded down, so that too little memory never looks like enough.
    let tenths = (u128::from(bytes) * 10) >> shift;
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 { format!("{whole}{unit}") } else { format!("{whole}.{tenth}{unit}") }
}

/// The memory that is available by /proc/meminfo, and that of the machine.
pub fn of_machine(meminfo: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((kib("MemAvailable")? << 10, kib("MemTotal")? << 10))
}

/// What a cgroup leaves of its limit: `limit` and `used` are the texts of its files, and `stat`
/// that of memory.stat, whose inactive pages of files the kernel gives up first.
pub(crate) fn of_group(limit: &str, used: &str, stat: &str) -> Option<u64> {
    // Without a limit there is a word, or the highest number of pages.
    let limit: u64 = limit.trim().parse().ok()?;
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.trim().parse::<u64>().ok()?.saturating_sub(cached.unwrap_or(0))))
}

/// The load average of one minute, of /proc/loadavg.
pub fn average(loadavg: &str) -> Option<f64> {
    loadavg.split_ascii_whitespace().next()?.parse().ok()
}

/// The pressure of the last ten seconds, of /proc/pressure/cpu.
pub fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn command_waits_for_what_is_missing_and_says_how_much() {
        let room = Room { memory: Some(2 * GIB + GIB / 8), average: Some(9.25), pressure: Some(40.0) };
        let needs = |memory, load| Needs { memory, load };
        for (needs, text) in [
            (needs(Some(4 * GIB), None), Some("waiting for memory: 2.1G of 4G free")),
            (needs(Some(2 * GIB), None), None),
            (needs(None, Some(Load::Average(8.0))), Some("waiting for load: 9.2, at most 8")),
            (needs(Some(GIB), Some(Load::Average(9.5))), None),
            (needs(None, Some(Load::Pressure(25.0))), Some("waiting for load: 40.0%, at most 25%")),
            (needs(Some(4 * GIB), Some(Load::Pressure(25.0))), Some("waiting for memory: 2.1G of 4G free")),
            (Needs::default(), None),
        ] {
            assert_eq!(needs.missing_in(&room).as_deref(), text, "{needs:?}");
            assert_eq!(needs.missing_in(&Room::default()), None, "what is unknown is no reason to wait");
        }
        let both = needs(Some(4 * GIB), Some(Load::Pressure(25.0)));
        assert_eq!(both.to_string(), "4G of memory, a pressure of 25%");
        assert!(needs(Some(5), None).exceeds(4) && !needs(Some(4), None).exceeds(4));
    }

    #[test]
    fn size_is_rounded_down() {
        let sizes = [0, 1023, 1024, 1536, 4 * GIB - 1, 4 * GIB, 3 << 40].map(size);
        assert_eq!(sizes, ["0", "1023", "1K", "1.5K", "3.9G", "4G", "3T"]);
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        let meminfo = "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(of_machine(meminfo), Some((8_000_000 << 10, 16_000_000 << 10)));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), None);
        assert_eq!(of_group("1000\n", "600\n", "anon 1\ninactive_file 200\n"), Some(600));
        assert_eq!((of_group("max\n", "600\n", ""), of_group("500\n", "600\n", "")), (None, Some(0)));
        assert_eq!(average("9.25 3.00 1.00 2/345 6789\n"), Some(9.25));
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((pressure(text), pressure("")), (Some(12.5), None));
    }
}
