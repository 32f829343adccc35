import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import type { Job, Version } from "../api/types";
import type { Pick } from "../charts/picking";
import { useCalm } from "../charts/useCalm";
import { gridOf, nearest } from "./heat";
import { bandsQuery, heatQuery, lineQuery } from "./queries";
import { columnOf, spreadOf, type Spread } from "./spread";
import { useLatest } from "./useLatest";

interface Found {
  /** Undefined until it is known, and where nodes report nothing of the kind. */
  spread: Spread | undefined;
  /** The same at other versions. */
  spreadAt: (versions: Version[]) => Spread | undefined;
  /** Lets the client next to a click stand out. */
  pick: Pick;
}

/** How clients lie around a metric; `isolated`: the one that stands out. */
export function useSpread(
  job: Job,
  metric: string | undefined,
  versions: Version[],
  isolated: string,
  onIsolate: (node: string) => void,
): Found {
  const client = useQueryClient();
  const asked = metric ?? "";
  const wanted = asked !== "";
  const { data: bands, refetch } = useQuery({ ...bandsQuery(client, job.name, asked), enabled: wanted });
  const single = wanted && isolated !== "";
  const { data: alone, refetch: refetchAlone } = useQuery({ ...lineQuery(job.name, isolated, asked), enabled: single });
  useLatest(`${versions.at(-1)?.number ?? 0} ${job.state}`, () =>
    Promise.all([wanted && refetch(), single && refetchAlone()]),
  );
  const calmBands = useCalm(bands, versions);
  const mark = useMemo(() => [versions, isolated, asked], [versions, isolated, asked]);
  const calmAlone = useCalm(single ? alone : undefined, mark);
  const spreadAt = useCallback(
    (at: Version[]) =>
      calmBands === undefined || calmBands.rounds.length === 0 ? undefined : spreadOf(at, calmBands, calmAlone),
    [calmBands, calmAlone],
  );
  const spread = useMemo(() => spreadAt(versions), [spreadAt, versions]);
  const pick = useCallback<Pick>(
    (index, value, reach) => {
      const version = versions[index];
      if (version === undefined || asked === "") return;
      // Which line is meant only the lines of all tell; they are asked for when somebody clicks.
      void client.fetchQuery({ ...heatQuery(client, job.name, asked), staleTime: 1000 }).then((heat) => {
        const grid = gridOf(heat);
        const node = nearest(grid, columnOf(grid, version.number), value, reach);
        onIsolate(node === undefined || node === isolated ? "" : node);
      });
    },
    [client, job.name, asked, versions, isolated, onIsolate],
  );
  return { spread, spreadAt, pick };
}
