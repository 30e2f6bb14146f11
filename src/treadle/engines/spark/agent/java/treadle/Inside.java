package treadle;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;

/**
 * Reads fields and calls methods of Spark's objects by name. It caches what it finds, by class and name.
 *
 * For one thread.
 */
final class Inside {
    private final Map<Class<?>, Map<String, Field>> fields = new HashMap<>();
    private final Map<Class<?>, Map<String, Method>> methods = new HashMap<>(); // those by one name take equally many

    /** The value of a field; null where there is no such field. */
    Object field(Object of, String name) throws ReflectiveOperationException {
        Field found = of == null ? null : find(of.getClass(), name);
        return found == null ? null : found.get(of);
    }

    /** The value of a field that is a number; -1 where there is none. */
    long number(Object of, String name) throws ReflectiveOperationException {
        Object found = field(of, name);
        return found == null ? -1 : ((Number) found).longValue();
    }

    /** A field by its name, or by the long one that Scala gives it; null where there is none. */
    Field find(Class<?> kind, String name) {
        Map<String, Field> known = fields.computeIfAbsent(kind, each -> new HashMap<>());
        if (!known.containsKey(name)) {
            Field found = null;
            for (Class<?> at = kind; at != null && found == null; at = at.getSuperclass()) {
                for (Field each : at.getDeclaredFields()) {
                    if (each.getName().equals(name) || each.getName().endsWith("$$" + name)) {
                        each.setAccessible(true);
                        found = each;
                    }
                }
            }
            known.put(name, found);
        }
        return known.get(name);
    }

    /** What a method returns. */
    Object call(Object of, String name, Object... arguments) throws ReflectiveOperationException {
        return method(of.getClass(), name, arguments.length).invoke(of, arguments);
    }

    /** The value of a Scala option, or null. */
    Object get(Object option) throws ReflectiveOperationException {
        return (Boolean) call(option, "isEmpty") ? null : call(option, "get");
    }

    /** A method that takes so many arguments; a public one, if there is one. */
    Method method(Class<?> kind, String name, int arguments) throws NoSuchMethodException {
        Map<String, Method> known = methods.computeIfAbsent(kind, each -> new HashMap<>());
        Method found = known.get(name);
        if (found == null) {
            for (Method each : kind.getMethods()) {
                if (isCalled(each, name, arguments)) {
                    found = each;
                }
            }
            for (Class<?> at = kind; at != null && found == null; at = at.getSuperclass()) {
                for (Method each : at.getDeclaredMethods()) {
                    if (isCalled(each, name, arguments)) {
                        found = each;
                    }
                }
            }
            if (found == null) {
                throw new NoSuchMethodException(kind.getName() + '.' + name);
            }
            found.setAccessible(true);
            known.put(name, found);
        }
        return found;
    }

    private static boolean isCalled(Method method, String name, int arguments) {
        return method.getName().equals(name) && method.getParameterCount() == arguments && !method.isBridge();
    }

    /** A method without arguments that returns a number, as it is called fastest. */
    MethodHandle counter(Object of, String name) throws ReflectiveOperationException {
        return handle(method(of.getClass(), name, 0));
    }

    static MethodHandle handle(Method method) throws IllegalAccessException {
        method.setAccessible(true);
        return MethodHandles.lookup().unreflect(method).asType(MethodType.methodType(long.class, Object.class));
    }
}
