import { Icon } from "../ui/Icon";
import type { KeptZoom } from "./zoom";

/** Undoes the zoom of several charts, while they have one. */
export function ShowAll({ zoom }: { zoom: Pick<KeptZoom, "range" | "showAll"> }) {
  if (zoom.range === null) return null;
  return (
    <button type="button" className="quiet-button" data-testid="show-all" onClick={zoom.showAll}>
      <Icon name="zoom" /> Show all
    </button>
  );
}
