//! The files in examples/monitoring: alert rules of Prometheus and a dashboard of Grafana.

use std::collections::BTreeSet;
use std::process::Command;

use crate::{example, path};
use rlock_testkit::needs::{daemons, skip_unless};
use rlock_testkit::{Lab, Ran};

/// "their test for promtool".
#[test]
fn alert_rules_are_those_that_promtool_expects() {
    let path_of_tools = daemons(&["promtool"]);
    skip_unless!(path_of_tools.is_some());
    let mut promtool = Command::new("promtool");
    promtool.env("PATH", path_of_tools.expect("it is there")).current_dir(path("monitoring"));
    let ran = Ran::of(promtool.args(["test", "rules", "rlock.test.yml"]));
    assert!(ran.code() == Some(0) && ran.stdout.contains("SUCCESS"), "{ran:?}");
}

/// A rule or a panel about a metric that rlock does not write would never show anything.
#[test]
fn rules_and_dashboard_name_metrics_that_rlock_writes() {
    let lab = Lab::new();
    let written = lab.run(["inspect", "--prometheus"]).stdout;
    let written: BTreeSet<_> =
        written.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for file in ["monitoring/rlock.rules.yml", "monitoring/grafana.json"] {
        let text = example(file);
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let named: BTreeSet<_> = words.filter(|word| word.starts_with("rlock_")).collect();
        assert!(!named.is_empty() && named.is_subset(&written), "{file}: {named:?} {written:?}");
    }
    let board: serde_json::Value = serde_json::from_str(&example("monitoring/grafana.json")).expect("JSON");
    assert_eq!(board["panels"].as_array().map(Vec::len), Some(6));
}
