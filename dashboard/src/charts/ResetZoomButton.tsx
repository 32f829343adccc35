import { Icon } from "../ui/Icon";
import type { ChartZoom } from "./useZoom";

/** Button that resets the zoom of several charts, shown while they are zoomed. */
export function ResetZoomButton({ zoom }: { zoom: Pick<ChartZoom, "range" | "reset"> }) {
  if (zoom.range === null) return null;
  return (
    <button type="button" className="quiet-button" data-testid="reset-zoom" onClick={zoom.reset}>
      <Icon name="zoom" /> Reset zoom
    </button>
  );
}
