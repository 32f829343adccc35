/** The pages by address. Each is loaded when it is first shown. */
import type { ReactNode } from "react";
import { lazyComponent } from "./ui/lazyComponent";

// The first page of most sessions is requested before anything is rendered.
const isFirst = ["/", "/jobs"].includes(location.pathname);
const JobsPage = lazyComponent(async () => (await import("./jobs/JobsPage")).JobsPage, isFirst);
const ComparePage = lazyComponent(async () => (await import("./compare/ComparePage")).ComparePage);
const AlertsPage = lazyComponent(async () => (await import("./alerts/AlertsPage")).AlertsPage);
const JoinPage = lazyComponent(async () => (await import("./join/JoinPage")).JoinPage);
const LogsPage = lazyComponent(async () => (await import("./logs/LogsPage")).LogsPage);
const NodePage = lazyComponent(async () => (await import("./nodes/NodePage")).NodePage);
const NodesPage = lazyComponent(async () => (await import("./nodes/NodesPage")).NodesPage);
const JobPage = lazyComponent(async () => (await import("./job/JobPage")).JobPage);
const SplitJobPage = lazyComponent(async () => (await import("./split/SplitJobPage")).SplitJobPage);

const NewJobPage = lazyComponent(async () => (await import("./newjob/NewJobPage")).NewJobPage);

export const PAGES = {
  "/": () => <JobsPage />,
  "/jobs": () => <JobsPage />,
  "/jobs/:name": (name = "") => <JobPage key={name} name={name} />,
  "/alerts": () => <AlertsPage />,
  "/join": () => <JoinPage />,
  "/logs": () => <LogsPage />,
  "/new": () => <NewJobPage />,
  "/nodes": () => <NodesPage />,
  "/nodes/:name": (name = "") => <NodePage key={name} name={name} />,
  "/split/:name": (name = "") => <SplitJobPage key={name} name={name} />,
  "/compare": () => <ComparePage />,
} as const satisfies Record<string, (...names: string[]) => ReactNode>;

export const PATTERNS = Object.keys(PAGES) as (keyof typeof PAGES)[];
