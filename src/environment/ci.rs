//! Recognises the CI system that runs a job by the variables that its documentation names, and
//! finds the person behind the run and the address of the run.

use std::env;

/// What a CI system says about the run that this process belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// The person who caused the run, if the system names one.
    pub(crate) person: Option<String>,
    /// The address of the run's page.
    pub(crate) url: Option<String>,
}

/// The values of the variables that are set and not empty.
type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// How a CI system is recognised, and what it says.
struct System {
    /// The variable that every run has, and its value if the name alone is ambiguous.
    mark: (&'static str, Option<&'static str>),
    /// The variables with the person; the first that is set counts.
    persons: &'static [&'static str],
    /// The variables with the address; the first that is set counts.
    urls: &'static [&'static str],
    /// Builds the address where no variable has it.
    build: Option<fn(Variables<'_>) -> Option<String>>,
}

/// The systems, the more specific first: Woodpecker, for example, sets some variables of others.
const SYSTEMS: [System; 10] = [
    // https://woodpecker-ci.org/docs/usage/environment
    System {
        mark: ("CI", Some("woodpecker")),
        persons: &["CI_PIPELINE_AUTHOR", "CI_COMMIT_AUTHOR"],
        urls: &["CI_PIPELINE_URL"],
        build: None,
    },
    // https://docs.github.com/en/actions/reference/variables-reference
    System {
        mark: ("GITHUB_ACTIONS", Some("true")),
        persons: &["GITHUB_ACTOR"],
        urls: &[],
        build: Some(|variable| {
            let [server, repository, run] = ["GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"].map(variable);
            Some(format!("{}/{}/actions/runs/{}", server?, repository?, run?))
        }),
    },
    // https://docs.gitlab.com/ci/variables/predefined_variables/
    System {
        mark: ("GITLAB_CI", None),
        persons: &["GITLAB_USER_LOGIN", "GITLAB_USER_NAME"],
        urls: &["CI_JOB_URL", "CI_PIPELINE_URL"],
        build: None,
    },
    // https://buildkite.com/docs/pipelines/configure/environment-variables
    System {
        mark: ("BUILDKITE", Some("true")),
        persons: &["BUILDKITE_BUILD_CREATOR"],
        urls: &["BUILDKITE_BUILD_URL"],
        build: None,
    },
    // https://circleci.com/docs/variables/
    System {
        mark: ("CIRCLECI", Some("true")),
        persons: &["CIRCLE_USERNAME"],
        urls: &["CIRCLE_BUILD_URL"],
        build: None,
    },
    // https://learn.microsoft.com/en-us/azure/devops/pipelines/build/variables
    System {
        mark: ("TF_BUILD", None),
        persons: &["BUILD_REQUESTEDFOR"],
        urls: &[],
        build: Some(|variable| {
            // The address of the collection ends with a slash; the name of a project may have
            // spaces.
            let collection =
                variable("SYSTEM_COLLECTIONURI").or_else(|| variable("SYSTEM_TEAMFOUNDATIONCOLLECTIONURI"))?;
            let [project, build] = ["SYSTEM_TEAMPROJECT", "BUILD_BUILDID"].map(variable);
            let (collection, project) = (collection.trim_end_matches('/'), project?.replace(' ', "%20"));
            Some(format!("{collection}/{project}/_build/results?buildId={}", build?))
        }),
    },
    // https://docs.drone.io/pipeline/environment/reference/
    System {
        mark: ("DRONE", Some("true")),
        persons: &["DRONE_COMMIT_AUTHOR"],
        urls: &["DRONE_BUILD_LINK"],
        build: None,
    },
    // https://docs.travis-ci.com/user/environment-variables/, which names no person
    System {
        mark: ("TRAVIS", Some("true")),
        persons: &[],
        urls: &["TRAVIS_BUILD_WEB_URL", "TRAVIS_JOB_WEB_URL"],
        build: None,
    },
    // https://support.atlassian.com/bitbucket-cloud/docs/variables-and-secrets/, which names no
    // person but by a UUID
    System {
        mark: ("BITBUCKET_BUILD_NUMBER", None),
        persons: &[],
        urls: &[],
        build: Some(|variable| {
            let [origin, number] = ["BITBUCKET_GIT_HTTP_ORIGIN", "BITBUCKET_BUILD_NUMBER"].map(variable);
            Some(format!("{}/pipelines/results/{}", origin?, number?))
        }),
    },
    // https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables; the plugin
    // "build user vars" names the person
    System {
        mark: ("JENKINS_URL", None),
        persons: &["BUILD_USER_ID", "BUILD_USER", "CHANGE_AUTHOR"],
        urls: &["BUILD_URL"],
        build: None,
    },
];

/// The CI run that this process belongs to, if a CI system is recognised.
pub(crate) fn run() -> Option<Run> {
    recognised(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Whether this process belongs to a CI run, of whichever system.
pub(crate) fn is_present() -> bool {
    run().is_some() || is_named()
}

/// Whether this process belongs to a run of a CI system that need not be known.
pub(crate) fn is_named() -> bool {
    env::var_os("CI").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The CI run that these variables tell of.
fn recognised(variable: Variables<'_>) -> Option<Run> {
    let is_marked = |system: &&System| {
        let (name, value) = system.mark;
        variable(name).is_some_and(|found| value.is_none_or(|value| found.eq_ignore_ascii_case(value)))
    };
    let system = SYSTEMS.iter().find(is_marked)?;
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
    let url = first(system.urls).or_else(|| system.build.and_then(|build| build(variable)));
    Some(Run { person: first(system.persons), url })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variables of a run, its person, and its address.
    type Case = (&'static [(&'static str, &'static str)], Option<&'static str>, &'static str);

    fn of(variables: &[(&str, &str)]) -> Option<Run> {
        recognised(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn each_system_is_recognised_with_its_person_and_its_run() {
        let cases: [Case; 10] = [
            (
                &[
                    ("GITHUB_ACTIONS", "true"),
                    ("GITHUB_SERVER_URL", "https://github.com"),
                    ("GITHUB_REPOSITORY", "o/r"),
                    ("GITHUB_RUN_ID", "7"),
                    ("GITHUB_ACTOR", "ann"),
                ],
                Some("ann"),
                "https://github.com/o/r/actions/runs/7",
            ),
            (
                &[("GITLAB_CI", "true"), ("CI_JOB_URL", "https://gl/j/7"), ("GITLAB_USER_LOGIN", "ann")],
                Some("ann"),
                "https://gl/j/7",
            ),
            (&[("JENKINS_URL", "https://ci/"), ("BUILD_URL", "https://ci/job/7/")], None, "https://ci/job/7/"),
            (
                &[("BUILDKITE", "true"), ("BUILDKITE_BUILD_URL", "https://bk/7"), ("BUILDKITE_BUILD_CREATOR", "Ann")],
                Some("Ann"),
                "https://bk/7",
            ),
            (
                &[("CIRCLECI", "true"), ("CIRCLE_BUILD_URL", "https://cc/7"), ("CIRCLE_USERNAME", "ann")],
                Some("ann"),
                "https://cc/7",
            ),
            (
                &[
                    ("TF_BUILD", "True"),
                    ("SYSTEM_COLLECTIONURI", "https://dev.azure.com/org/"),
                    ("SYSTEM_TEAMPROJECT", "my project"),
                    ("BUILD_BUILDID", "7"),
                    ("BUILD_REQUESTEDFOR", "Ann"),
                ],
                Some("Ann"),
                "https://dev.azure.com/org/my%20project/_build/results?buildId=7",
            ),
            (
                &[("DRONE", "true"), ("DRONE_BUILD_LINK", "https://d/7"), ("DRONE_COMMIT_AUTHOR", "ann")],
                Some("ann"),
                "https://d/7",
            ),
            (
                &[("CI", "woodpecker"), ("CI_PIPELINE_URL", "https://w/7"), ("CI_COMMIT_AUTHOR", "ann")],
                Some("ann"),
                "https://w/7",
            ),
            (&[("TRAVIS", "true"), ("TRAVIS_BUILD_WEB_URL", "https://t/7")], None, "https://t/7"),
            (
                &[("BITBUCKET_BUILD_NUMBER", "7"), ("BITBUCKET_GIT_HTTP_ORIGIN", "https://bitbucket.org/o/r")],
                None,
                "https://bitbucket.org/o/r/pipelines/results/7",
            ),
        ];
        for (variables, person, url) in cases {
            let expected = Run { person: person.map(str::to_owned), url: Some(url.to_owned()) };
            assert_eq!(of(variables), Some(expected), "{variables:?}");
        }
    }

    #[test]
    fn unknown_system_is_not_recognised_and_a_missing_address_is_not_made_up() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("CI", "true"), ("CI_JOB_URL", "https://x")]), None);
        assert_eq!(of(&[("GITHUB_ACTIONS", "true"), ("GITHUB_REPOSITORY", "o/r")]), Some(Run::default()));
    }
}
