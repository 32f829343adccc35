import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import type { Job, Version } from "../api/types";
import type { OnPointClick } from "../charts/clickPlugin";
import type { ClientSpread } from "../charts/clientSpread";
import { useCoalescedValue } from "../charts/useCoalescedValue";
import { clientSpread, columnOf } from "./clientSpread";
import { nearestClient, toGrid } from "./heatMapData";
import { bandsQuery, heatMapQuery, lineQuery } from "./queries";
import { useThrottledRefetch } from "./useThrottledRefetch";

interface Result {
  /** undefined until it is loaded, and if nodes do not report the metric. */
  spread: ClientSpread | undefined;
  /** Return the spread at other versions. */
  spreadAt: (versions: Version[]) => ClientSpread | undefined;
  /** Select the client whose line is nearest to a click. */
  onPointClick: OnPointClick;
}

/** Return the distribution of a metric over clients; `selected`: the client whose line is highlighted. */
export function useClientSpread(
  job: Job,
  metric = "",
  versions: Version[],
  selected: string,
  onSelect: (node: string) => void,
): Result {
  const client = useQueryClient();
  const hasMetric = metric !== "";
  const hasSelected = hasMetric && selected !== "";
  const { data: bands, refetch } = useQuery({ ...bandsQuery(client, job.name, metric), enabled: hasMetric });
  const { data: line, refetch: refetchLine } = useQuery({ ...lineQuery(job.name, selected, metric), enabled: hasSelected });
  useThrottledRefetch(`${versions.at(-1)?.number ?? 0} ${job.state}`, () =>
    Promise.all([hasMetric && refetch(), hasSelected && refetchLine()]),
  );
  const shownBands = useCoalescedValue(bands, versions);
  const trigger = useMemo(() => [versions, selected, metric], [versions, selected, metric]);
  const shownLine = useCoalescedValue(hasSelected ? line : undefined, trigger);
  const spreadAt = useCallback(
    (at: Version[]) =>
      shownBands === undefined || shownBands.rounds.length === 0 ? undefined : clientSpread(at, shownBands, shownLine),
    [shownBands, shownLine],
  );
  const spread = useMemo(() => spreadAt(versions), [spreadAt, versions]);
  const onPointClick = useCallback<OnPointClick>(
    (index, value, radius) => {
      const version = versions[index];
      if (version === undefined || metric === "") return;
      // The lines of all clients are needed to find the nearest one; they are fetched at the first click.
      void client.fetchQuery({ ...heatMapQuery(client, job.name, metric), staleTime: 1000 }).then((data) => {
        const grid = toGrid(data);
        const node = nearestClient(grid, columnOf(grid, version.number), value, radius);
        onSelect(node === undefined || node === selected ? "" : node);
      });
    },
    [client, job.name, metric, versions, selected, onSelect],
  );
  return { spread, spreadAt, onPointClick };
}
