import { useId, useLayoutEffect, useRef, type ReactNode } from "react";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
}

/** Modal dialog. The browser keeps the focus inside, closes it with Escape, and restores the focus. */
export function Dialog({ title, onClose, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  // The browser restores the focus only if the dialog is closed while it is in the document.
  // The close event arrives after the component is unmounted, when another dialog may be open: ignore it.
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
