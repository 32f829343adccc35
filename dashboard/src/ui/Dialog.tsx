import { useId, useLayoutEffect, useRef, type ReactNode } from "react";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
}

/** A modal of the browser's own: it keeps the focus inside, closes with Escape, and gives the focus back. */
export function Dialog({ title, onClose, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  // Closed while it still is in the document: only so the browser gives the focus back.
  // That is heard of after it has gone, when another may be open already: nobody is to be told.
  const gone = useRef(false);
  useLayoutEffect(() => {
    const shown = dialog.current;
    gone.current = false;
    shown?.showModal();
    return () => {
      gone.current = true;
      shown?.close();
    };
  }, []);
  const closed = () => {
    if (!gone.current) onClose();
  };
  return (
    <dialog ref={dialog} className="dialog" aria-labelledby={heading} onCancel={closed} onClose={closed}>
      <h2 id={heading}>{title}</h2>
      {children}
    </dialog>
  );
}
