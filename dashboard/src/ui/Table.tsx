import { memo, useRef, type HTMLAttributes, type ReactNode } from "react";
import { Icon } from "./Icon";
import { QueryStatus, type QueryState } from "./QueryStatus";
import { Term } from "./Term";
import type { TermName } from "./terms";
import { useVirtualRows } from "./useVirtualRows";

export interface Column<R> {
  title: string;
  /** The heading, if it is not the title. */
  heading?: ReactNode;
  /** The term of the glossary that explains the heading. */
  term?: TermName;
  cell: (row: R, index: number) => ReactNode;
  /** True if the column contains figures, which are aligned to the right. */
  numeric?: boolean;
  /** Return whether a cell is shown as an error. */
  isBad?: (row: R) => boolean;
  className?: string;
  /** The order that a click on the heading selects. */
  sort?: string;
  /** True if the cells are headings of rows; by default those of the first column are. */
  rowHeader?: boolean;
  /** True if the cells of the layout "cards" have no title. */
  unlabeled?: boolean;
}

interface Sorting {
  by: string;
  descending: boolean;
  onChange: (by: string) => void;
}

type RowAttributes = HTMLAttributes<HTMLTableRowElement> & { [key: `data-${string}`]: unknown };

interface Props<R> {
  /** Memoised: rows are rendered again when the columns change. */
  columns: readonly Column<R>[];
  rows: readonly R[];
  rowKey: (row: R) => string | number;
  rowAttributes?: (row: R) => RowAttributes;
  /** "compact": small cells; "cards": each row becomes a card on a narrow screen; "custom": `className` has all styles. */
  layout?: "compact" | "cards" | "custom";
  className?: string;
  /** Shown instead of a table without rows. */
  empty?: ReactNode;
  /** The query of the rows; while it has no data, its status is shown. */
  query?: QueryState;
  sorting?: Sorting;
  caption?: ReactNode;
  /** The scrollable box around the table: its class, and its name if it can be focused to scroll with the keyboard. */
  scroll?: { className?: string; label?: string };
  /** True if only the rows near the screen are rendered. */
  virtual?: boolean;
  testId?: string;
}

/** A table: sortable headings that stay in view, rows, an empty state, and the state of its query. */
export function Table<R>(props: Props<R>) {
  const { columns, rows, layout = "compact", className, empty, query, scroll, virtual = false, testId } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const { from, to, before, after } = useVirtualRows(virtual ? rows.length : 0, body);
  const shown = virtual ? rows.slice(from, to) : rows;
  if (query !== undefined && query.data === undefined) return <QueryStatus query={query} lines={4} />;
  if (rows.length === 0 && empty !== undefined) return <p className="nothing">{empty}</p>;
  // Styles that make cards of rows would remove the roles of a table.
  const cards = layout !== "compact";
  const table = (
    <table
      className={[layout === "custom" ? "" : `table table-${layout}`, className].filter(Boolean).join(" ")}
      role={cards ? "table" : undefined}
      aria-rowcount={virtual ? rows.length + 1 : undefined}
      data-testid={testId}
    >
      {props.caption !== undefined && <caption className="sub">{props.caption}</caption>}
      <thead role={cards ? "rowgroup" : undefined}>
        <tr role={cards ? "row" : undefined}>
          {columns.map((column) => (
            <Heading key={column.title} column={column} cards={cards} sorting={props.sorting} />
          ))}
        </tr>
      </thead>
      <tbody role={cards ? "rowgroup" : undefined} ref={body}>
        <SpacerRow height={before} />
        {shown.map((row, index) => (
          <MemoRow
            key={props.rowKey(row)}
            row={row}
            index={from + index}
            columns={columns as readonly Column<unknown>[]}
            cards={cards}
            attributes={props.rowAttributes as ((row: unknown) => RowAttributes) | undefined}
          />
        ))}
        <SpacerRow height={after} />
      </tbody>
    </table>
  );
  if (scroll === undefined) return table;
  const region = scroll.label === undefined ? {} : { tabIndex: 0, role: "region", "aria-label": scroll.label };
  return (
    <div className={["table-scroll", scroll.className].filter(Boolean).join(" ")} {...region}>
      {table}
    </div>
  );
}

interface HeadingProps<R> {
  column: Column<R>;
  cards: boolean;
  sorting: Sorting | undefined;
}

function Heading<R>({ column: { title, heading = title, term, numeric, sort }, cards, sorting }: HeadingProps<R>) {
  const isCurrent = sorting !== undefined && sort !== undefined && sorting.by === sort;
  return (
    <th
      role={cards ? "columnheader" : undefined}
      scope="col"
      className={numeric ? "num" : undefined}
      aria-sort={isCurrent ? (sorting.descending ? "descending" : "ascending") : undefined}
    >
      {sorting === undefined || sort === undefined ? (
        term === undefined ? heading : <Term of={term}>{heading}</Term>
      ) : (
        <SortButton term={term} onClick={() => sorting.onChange(sort)}>
          {heading}
          {isCurrent && <Icon name="sort" />}
        </SortButton>
      )}
    </th>
  );
}

function SortButton({ term, onClick, children }: { term: TermName | undefined; onClick: () => void; children: ReactNode }) {
  if (term !== undefined) {
    return (
      <Term of={term} className="sort-button" onClick={onClick}>
        {children}
      </Term>
    );
  }
  return (
    <button type="button" className="sort-button" onClick={onClick}>
      {children}
    </button>
  );
}

interface RowProps {
  row: unknown;
  index: number;
  columns: readonly Column<unknown>[];
  cards: boolean;
  attributes: ((row: unknown) => RowAttributes) | undefined;
}

const MemoRow = memo(function Row({ row, index, columns, cards, attributes }: RowProps) {
  return (
    <tr role={cards ? "row" : undefined} {...attributes?.(row)}>
      {columns.map((column, place) => {
        const { title, cell, numeric, isBad, rowHeader = place === 0, unlabeled } = column;
        const className = [numeric && "num", isBad?.(row) && "bad", column.className].filter(Boolean).join(" ") || undefined;
        if (rowHeader) {
          return (
            <th key={title} role={cards ? "rowheader" : undefined} scope="row" className={className}>
              {cell(row, index)}
            </th>
          );
        }
        return (
          <td key={title} role={cards ? "cell" : undefined} className={className} data-label={cards && !unlabeled ? title : undefined}>
            {cell(row, index)}
          </td>
        );
      })}
    </tr>
  );
});

/** Placeholder for rows that are not rendered. */
function SpacerRow({ height }: { height: number }) {
  if (height <= 0) return null;
  return (
    <tr aria-hidden="true" data-spacer style={{ height, border: 0 }}>
      <td style={{ padding: 0, border: 0 }} />
    </tr>
  );
}

/** Return a heading that only screen readers read out. */
export const hiddenHeading = (title: string): ReactNode => <span className="visually-hidden">{title}</span>;
